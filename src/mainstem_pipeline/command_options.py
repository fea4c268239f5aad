"""Options of every command over topics and tables, apart from the commands: a quick command imports no slow one."""

from __future__ import annotations

import click

from mainstem_pipeline.client import DEFAULT_URL

URL = click.option(
    "--url", envvar="MAINSTEM_URL", default=DEFAULT_URL, show_default=True, help="The broker's HTTP address."
)
WAREHOUSE = click.option(
    "--warehouse",
    envvar="MAINSTEM_WAREHOUSE",
    default="./lake",
    show_default=True,
    help="Folder or s3:// URL of the lake.",
)
CATALOG = click.option(
    "--catalog", envvar="MAINSTEM_CATALOG", default="", help="SQL or REST catalog URL (default: SQLite)."
)

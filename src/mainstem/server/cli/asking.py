"""What cannot be taken back is asked for: on a terminal by a question, elsewhere by `--yes`."""

from __future__ import annotations

import sys

import click

from mainstem.model.errors import InvalidArgument

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask. Needed where there is no terminal.")


def confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidArgument(f"{question} Nobody can answer that: standard input is not a terminal", fix="add --yes")
    click.confirm(question, abort=True)

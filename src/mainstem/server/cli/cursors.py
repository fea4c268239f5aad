"""`cursor`: consumer groups, queues and MQTT sessions in one table, whichever protocol made them."""

from __future__ import annotations

from typing import Any

import click

from mainstem.model.errors import InvalidArgument, NotFound
from mainstem.server.cli.api import Api, segment, url_option
from mainstem.server.cli.asking import confirm, yes_option
from mainstem.server.cli.output import json_option, print_facts, print_rows

kind_option = click.option(
    "--kind", type=click.Choice(["group", "queue", "session"]), help="Where several have the same name."
)
PATHS = {"group": "groups", "queue": "queues", "session": "sessions"}


@click.group()
def cursor() -> None:
    """List, describe, alter and remove cursors of all protocols: consumer groups, queues, MQTT sessions.

    They are made by consuming, or with `mainstem group create` and `mainstem queue create`.
    """


@cursor.command("ls")
@click.option(
    "--sort", type=click.Choice(["name", "lag"]), default="name", show_default=True, help="Order of the rows."
)
@json_option
@url_option
def cursor_ls(sort: str, as_json: bool, url: str) -> None:
    """One table, with how far each has come and what is kept only for it."""
    rows = list(Api(url).rows("/v1/cursors"))
    if sort == "lag":
        rows.sort(key=lambda row: -row["lag"])
    columns = ["name", "protocol", "kind", "reads", "lag", "unacked", "held_bytes", "state"]
    print_rows(rows, columns, as_json=as_json, empty="no cursors")


@cursor.command("describe")
@click.argument("name")
@kind_option
@json_option
@url_option
def cursor_describe(name: str, kind: str | None, as_json: bool, url: str) -> None:
    """One cursor: of a group also its members and offsets, of a queue its settings."""
    api = Api(url)
    row, kind = _find(api, name, kind)
    more = api.get(f"/v1/{PATHS[kind]}/{segment(name)}") if kind != "session" else {}
    print_facts({**row, **more}, as_json=as_json)


@cursor.command("alter")
@click.argument("name")
@click.option("--topic", help="Only this topic, as Kafka spells it.")
@click.option("--to", required=True, metavar="WHERE", help="earliest, latest, @offset, -10, ts:<RFC 3339>.")
@click.option("--execute", is_flag=True, help="Do it; without, only what would change is shown.")
@json_option
@url_option
@click.pass_context
def cursor_alter(context: click.Context, /, name: str, url: str, **given: Any) -> None:
    """Move a consumer group; the same as `mainstem group reset`. Queues and sessions move by what they settle."""
    from mainstem.server.cli.queues import group_reset

    _, kind = _find(Api(url), name, None)
    if kind != "group":
        raise InvalidArgument(f"{name} is a {kind}: it moves by what it settles", fix=f"mainstem {kind} --help")
    context.invoke(group_reset, name=name, url=url, **given)


@cursor.command("rm")
@click.argument("name")
@kind_option
@yes_option
@url_option
def cursor_rm(name: str, kind: str | None, yes: bool, url: str) -> None:
    """Delete a cursor; the records stay in the log. A session's client must be away, a group's members too."""
    api = Api(url)
    _, kind = _find(api, name, kind)
    confirm(f"Delete {kind} {name} and where it stands?", yes)
    api.delete(f"/v1/{PATHS[kind]}/{segment(name)}")
    click.echo(f"removed {kind} {name}")


def _find(api: Api, name: str, kind: str | None) -> tuple[dict[str, Any], str]:
    """The row, and which of the three it is."""
    found = [
        (row, kept)
        for row in api.rows("/v1/cursors")
        if row["name"] == name and (kept := row["kind"].rsplit(" ", 1)[-1]) == (kind or kept)
    ]
    if not found:
        raise NotFound(f"there is no cursor {name}", fix="mainstem cursor ls")
    if len(found) > 1:
        kinds = " and a ".join(kept for _, kept in found)
        raise InvalidArgument(f"{name} is a {kinds}", fix=f"--kind {found[0][1]}")
    return found[0]

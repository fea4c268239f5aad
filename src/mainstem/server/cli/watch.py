"""`top` and `events`: watching it work."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import click

from mainstem.model.counted import counted
from mainstem.server.cli.api import Api, url_option
from mainstem.server.cli.output import show_bytes


@click.command()
@click.option("--once", is_flag=True, help="Print once and end, as where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, one each second.")
@click.option(
    "--sort", type=click.Choice(["lag", "name"]), default="lag", show_default=True, help="Order of the cursors."
)
@url_option
def top(once: bool, as_json: bool, sort: str, url: str) -> None:
    """What moves right now, each second: protocols, cursors, connections."""
    api = Api(url)
    if as_json:
        while True:
            click.echo(json.dumps(api.get("/v1/overview")))
            if once:
                return
            time.sleep(1)
    from rich.console import Console
    from rich.live import Live

    if once or not sys.stdout.isatty():
        Console().print(_screen(api, sort))
        return
    with Live(_screen(api, sort), refresh_per_second=2, screen=True) as live:
        try:
            while True:
                time.sleep(1)
                live.update(_screen(api, sort))
        except KeyboardInterrupt:
            return


@click.command()
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(["connected", "disconnected", "rebalanced", "created", "moved", "deleted", "logged"]),
    help="Only these (repeatable). `logged` is what the broker's log says: refusals, failures.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
@url_option
def events(kinds: tuple[str, ...], count: int | None, as_json: bool, url: str) -> None:
    """What happens, live: who comes and goes, refusals, rebalances, topics that are made, moved and deleted."""
    shown = 0
    try:
        for event in Api(url).events("/v1/events"):
            if not isinstance(event, dict) or (kinds and event["kind"] not in kinds):
                continue
            click.echo(json.dumps(event, ensure_ascii=False) if as_json else _line(event))
            shown += 1
            if count is not None and shown >= count:
                return
    except KeyboardInterrupt:
        return


def _line(event: dict[str, Any]) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event["time_ms"] / 1000))
    kind = event["level"] if event["kind"] == "logged" and event["level"] != "info" else event["kind"]
    where = f" in {event['namespace']}" if event["namespace"] not in ("", "/") else ""
    return f"{at}.{event['time_ms'] % 1000:03d}  {kind:<12}  {event['protocol']:<6}  {event['text']}{where}"


def _screen(api: Api, sort: str) -> Any:
    from rich.console import Group
    from rich.table import Table

    facts = api.get("/v1/overview")
    cursors = api.get("/v1/cursors", limit=100)["items"]
    connections = api.get("/v1/connections", limit=20)["items"]
    head = (
        f"Mainstem {facts['version']}  up {facts['uptime_s']:.0f} s  {counted(facts['topics'], 'topic')}  "
        f"{show_bytes(facts['resident_bytes'])} memory\n"
        f"{show_bytes(facts['disk']['free_bytes'])} free on disk  loop lag {facts['loop_lag_ms']} ms"
    )
    rates = Table("protocol", "connections", "in/s", "out/s", "bytes in/s", "bytes out/s", expand=True)
    for protocol, rate in facts["rates"].items():
        rates.add_row(
            protocol,
            str(facts["connections"].get(protocol, 0)),
            f"{rate['messages_in']:,.0f}",
            f"{rate['messages_out']:,.0f}",
            show_bytes(rate["bytes_in"]),
            show_bytes(rate["bytes_out"]),
        )
    cursors.sort(key=(lambda row: -row["lag"]) if sort == "lag" else (lambda row: row["name"]))
    held = Table("cursor", "protocol", "reads", "lag", "unacked", "state", expand=True)
    for row in cursors[:15]:
        held.add_row(row["name"], row["protocol"], row["reads"], str(row["lag"]), str(row["unacked"]), row["state"])
    clients = Table("client", "protocol", "address", "state", expand=True)
    for row in connections[:15]:
        clients.add_row(row["client"], row["protocol"], row["address"], row["state"])
    return Group(head, rates, held, clients)

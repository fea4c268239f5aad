"""`top` and `bench`: watching it work, and making it work."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from mainstem.server.cli.api import Api, url_option
from mainstem.server.cli.output import show_bytes


@click.command()
@click.option("--once", is_flag=True, help="Print once and end.")
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

    if once:
        Console().print(_screen(api, sort))
        return
    with Live(_screen(api, sort), refresh_per_second=2, screen=True) as live:
        try:
            while True:
                time.sleep(1)
                live.update(_screen(api, sort))
        except KeyboardInterrupt:
            return


def _screen(api: Api, sort: str) -> Any:
    from rich.console import Group
    from rich.table import Table

    facts = api.get("/v1/overview")
    cursors = api.get("/v1/cursors", limit=100)["items"]
    connections = api.get("/v1/connections", limit=20)["items"]
    head = (
        f"Mainstem {facts['version']}  up {facts['uptime_s']:.0f} s  {facts['topics']} topics  "
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


@click.command()
@click.option("--proto", type=click.Choice(["all", "mqtt", "kafka", "amqp"]), default="all", show_default=True)
@click.option("--size", default=128, show_default=True, help="Bytes of a message.")
@click.option("--seconds", default=5.0, show_default=True, help="How long each protocol publishes.")
@click.option("--rate", default=0, show_default=True, help="Messages a second; 0 is as fast as it goes.")
@click.option("--host", default="localhost", show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, writable=True), help="Write the results as JSON.")
@url_option
def bench(proto: str, size: int, seconds: float, rate: int, host: str, out: str | None, url: str) -> None:
    """Publish by one client of each protocol, consume by another, and say how fast and how late.

    The clients are this command's own, in plain Python: they are the bottleneck long before the broker is. For real
    figures beside other brokers use `make bench`.
    """
    from pathlib import Path

    from mainstem.server.cli.output import print_rows
    from mainstem.server.load import measure

    ports = Api(url).get("/v1/overview")["listeners"]
    wanted = [name for name in ("mqtt", "kafka", "amqp") if name in ports and proto in ("all", name)]
    rows = [measure(name, host, ports[name], size=size, seconds=seconds, rate=rate) for name in wanted]
    columns = ["protocol", "published", "per_second", "received", "p50_ms", "p99_ms", "max_ms"]
    print_rows(rows, columns, as_json=False)
    if any(row["sender_busy"] > 0.95 for row in rows):
        click.echo("the sender was the bottleneck; the broker could do more", err=True)
    if out:
        Path(out).write_text(json.dumps(rows, indent=2) + "\n")

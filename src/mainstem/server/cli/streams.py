"""`stream`: streams of JetStream, and how durable their acks are."""

from __future__ import annotations

import click

from mainstem.server.cli.api import Api, segment, url_option
from mainstem.server.cli.output import json_option, print_done, print_facts, print_rows, show_time_ns


@click.group()
def stream() -> None:
    """List, describe, create and alter streams of JetStream. NATS clients make them, too, and delete them."""


@stream.command("ls")
@json_option
@url_option
def stream_ls(as_json: bool, url: str) -> None:
    """Streams by name."""
    print_rows(
        Api(url).rows("/v1/streams"),
        ["name", "subjects", "storage", "retention", "durability", "messages", "bytes", "consumers"],
        as_json=as_json,
        empty="no streams; make one: mainstem stream create orders --subject 'orders.>'",
    )


@stream.command("describe")
@click.argument("name")
@json_option
@url_option
def stream_describe(name: str, as_json: bool, url: str) -> None:
    """One stream: what it captures, when its publishes are acked, where its bytes are, its configuration."""
    facts = Api(url).get(f"/v1/streams/{segment(name)}")
    if not as_json:
        facts["created"] = show_time_ns(facts["created"])
    print_facts(facts, as_json=as_json)


@stream.command("create")
@click.argument("name")
@click.option("--subject", "subjects", multiple=True, help="What it captures, as NATS spells it. Repeatable.")
@click.option("--storage", type=click.Choice(["file", "memory"]), help="file: the namespace's engine.")
@click.option("--durability", help="When a publish is acked: sync, interval:<ms>, os or none.")
@json_option
@url_option
def stream_create(
    name: str, subjects: tuple[str, ...], storage: str | None, durability: str | None, as_json: bool, url: str
) -> None:
    """Create a stream; without --subject it captures the subject of its name. NATS clients may update it."""
    wanted = {"name": name, "subjects": list(subjects) or None, "storage": storage, "durability": durability}
    facts = Api(url).post("/v1/streams", wanted)
    captured = ", ".join(facts["subjects"])
    print_done(f"created stream {name} of {captured}, durability {facts['durability']}", facts, as_json)


@stream.command("alter")
@click.argument("name")
@click.option("--durability", required=True, help="When a publish is acked: sync, interval:<ms>, os or none.")
@json_option
@url_option
def stream_alter(name: str, durability: str, as_json: bool, url: str) -> None:
    """Change when a stream's publishes are acked, while it is used."""
    facts = Api(url).patch(f"/v1/streams/{segment(name)}", {"durability": durability})
    print_done(f"changed stream {name}: durability {facts['durability']}", facts, as_json)

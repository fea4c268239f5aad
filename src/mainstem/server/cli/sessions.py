"""`session`: what the broker keeps for MQTT clients."""

from __future__ import annotations

import click

from mainstem.server.cli.api import Api, segment, url_option
from mainstem.server.cli.asking import confirm, yes_option
from mainstem.server.cli.output import json_option, print_facts, print_rows, show_time_ns


@click.group()
def session() -> None:
    """List, describe and remove the sessions of MQTT clients."""


@session.command("ls")
@json_option
@url_option
def session_ls(as_json: bool, url: str) -> None:
    """Sessions by client id, with what they are owed."""
    columns = ["name", "user", "state", "reads", "lag", "unacked", "held_bytes"]
    print_rows(Api(url).rows("/v1/sessions"), columns, as_json=as_json, empty="no sessions")


@session.command("describe")
@click.argument("client_id")
@json_option
@url_option
def session_describe(client_id: str, as_json: bool, url: str) -> None:
    """One session: subscriptions, what is in flight, when it expires."""
    facts = Api(url).get(f"/v1/sessions/{segment(client_id)}")
    if not as_json:
        facts.update({name: show_time_ns(facts[name]) for name in ("left", "expires") if facts[name]})
    print_facts(facts, as_json=as_json)


@session.command("rm")
@click.argument("client_id")
@yes_option
@url_option
def session_rm(client_id: str, yes: bool, url: str) -> None:
    """Delete the session of a client that is away, with what it is owed."""
    confirm(f"Delete session {client_id}? What it was owed is not delivered to it.", yes)
    Api(url).delete(f"/v1/sessions/{segment(client_id)}")
    click.echo(f"removed session {client_id}")

"""`exchange` and `binding`: what AMQP publishes to, and where it goes."""

from __future__ import annotations

import json
from typing import Any

import click

from mainstem.model.errors import InvalidArgument
from mainstem.server.cli.api import Api, segment, url_option
from mainstem.server.cli.asking import confirm, yes_option
from mainstem.server.cli.output import json_option, print_done, print_facts, print_rows

KINDS = ("direct", "fanout", "headers", "topic", "x-delayed-message")
vhost_option = click.option(
    "--vhost", "--namespace", "vhost", default="/", show_default=True, help="The vhost; it is a namespace."
)
arguments_option = click.option("--arguments", metavar="JSON", help='A table of arguments: {"x-match": "all"}.')


def _table(text: str | None) -> dict[str, Any]:
    try:
        table = json.loads(text or "{}")
    except ValueError as error:
        raise InvalidArgument(f"--arguments is not JSON: {error}", fix="""--arguments '{"x-match": "all"}'""") from None
    if not isinstance(table, dict):
        raise InvalidArgument("--arguments must be a JSON object", fix="""--arguments '{"x-match": "all"}'""")
    return table


@click.group()
def exchange() -> None:
    """List, describe, create and remove AMQP exchanges."""


@exchange.command("ls")
@vhost_option
@json_option
@url_option
def exchange_ls(vhost: str, as_json: bool, url: str) -> None:
    """Exchanges of a vhost."""
    rows = Api(url).get(f"/api/exchanges/{segment(vhost)}")
    rows = rows if as_json else [{**row, "name": row["name"] or "(default)"} for row in rows]
    print_rows(rows, ["name", "type", "durable", "auto_delete", "internal"], as_json=as_json, empty="no exchanges")


@exchange.command("describe")
@click.argument("name")
@vhost_option
@json_option
@url_option
def exchange_describe(name: str, vhost: str, as_json: bool, url: str) -> None:
    """One exchange, with what is bound to it."""
    api, path = Api(url), f"/api/exchanges/{segment(vhost)}/{segment(name)}"
    facts = api.get(path)
    facts["bindings"] = [_binding_row(one) for one in api.get(f"{path}/bindings/source")]
    print_facts(facts, as_json=as_json)


@exchange.command("create")
@click.argument("name")
@click.option("--type", "kind", type=click.Choice(KINDS), default="topic", show_default=True)
@click.option("--transient", is_flag=True, help="Do not keep it over a restart.")
@click.option("--auto-delete", is_flag=True, help="Delete it when its last binding goes.")
@click.option("--internal", is_flag=True, help="Only other exchanges publish to it.")
@arguments_option
@vhost_option
@url_option
def exchange_create(
    name: str,
    kind: str,
    transient: bool,
    auto_delete: bool,
    internal: bool,
    arguments: str | None,
    vhost: str,
    url: str,
) -> None:
    """Create an exchange; the same again changes nothing."""
    body = {"type": kind, "durable": not transient, "auto_delete": auto_delete, "internal": internal}
    Api(url).put(f"/api/exchanges/{segment(vhost)}/{segment(name)}", {**body, "arguments": _table(arguments)})
    click.echo(f"created exchange {name}: {kind}")


@exchange.command("rm")
@click.argument("name")
@vhost_option
@yes_option
@url_option
def exchange_rm(name: str, vhost: str, yes: bool, url: str) -> None:
    """Remove an exchange and its bindings; queues and records stay."""
    confirm(f"Remove exchange {name} and its bindings?", yes)
    Api(url).delete(f"/api/exchanges/{segment(vhost)}/{segment(name)}")
    click.echo(f"removed exchange {name}")


@click.group()
def binding() -> None:
    """List, add and remove bindings: which messages of an exchange go to a queue or another exchange."""


def _binding_row(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "source": one["source"] or "(default)",
        "destination": one["destination"],
        "to": one["destination_type"],
        "key": one["routing_key"],
        "arguments": one["arguments"],
    }


@binding.command("ls")
@click.option("--exchange", "source", help="Only from this exchange.")
@click.option("--queue", help="Only to this queue.")
@vhost_option
@json_option
@url_option
def binding_ls(source: str | None, queue: str | None, vhost: str, as_json: bool, url: str) -> None:
    """Bindings of a vhost."""
    found = Api(url).get(f"/api/bindings/{segment(vhost)}")
    found = [one for one in found if source is None or one["source"] == source]
    found = [one for one in found if queue is None or (one["destination_type"], one["destination"]) == ("queue", queue)]
    rows = found if as_json else [_binding_row(one) for one in found]
    columns = ["source", "destination", "to", "key", "arguments"]
    print_rows(rows, columns, as_json=as_json, empty="no bindings")


def _place(vhost: str, source: str, destination: str, to_exchange: bool) -> str:
    letter = "e" if to_exchange else "q"
    return f"/api/bindings/{segment(vhost)}/e/{segment(source)}/{letter}/{segment(destination)}"


to_exchange_option = click.option("--to-exchange", is_flag=True, help="DESTINATION is an exchange, not a queue.")


@binding.command("add")
@click.argument("source")
@click.argument("destination")
@click.option("--key", default="", help="The routing key, or a pattern such as sensors.*.temp.")
@arguments_option
@to_exchange_option
@vhost_option
@json_option
@url_option
def binding_add(
    source: str,
    destination: str,
    key: str,
    arguments: str | None,
    to_exchange: bool,
    vhost: str,
    as_json: bool,
    url: str,
) -> None:
    """Send what is published to exchange SOURCE under --key to DESTINATION; the same again changes nothing."""
    body = {"routing_key": key, "arguments": _table(arguments)}
    Api(url).post(_place(vhost, source, destination, to_exchange), body)
    print_done(f"bound {destination} to {source} by {key!r}", {"source": source, **body}, as_json)


@binding.command("rm")
@click.argument("source")
@click.argument("destination")
@click.option("--key", default="", help="The routing key it was added with.")
@to_exchange_option
@vhost_option
@url_option
def binding_rm(source: str, destination: str, key: str, to_exchange: bool, vhost: str, url: str) -> None:
    """Remove a binding, by what it was added with."""
    api, place = Api(url), _place(vhost, source, destination, to_exchange)
    kind = "exchange" if to_exchange else "queue"
    found = [
        one
        for one in api.get(f"/api/exchanges/{segment(vhost)}/{segment(source)}/bindings/source")
        if (one["destination_type"], one["destination"], one["routing_key"]) == (kind, destination, key)
    ]
    if not found:
        raise InvalidArgument(
            f"{destination} is not bound to {source} by {key!r}", fix=f"mainstem binding ls --exchange {source}"
        )
    for one in found:
        api.delete(f"{place}/{segment(one['properties_key'])}")
    click.echo(f"removed the binding of {destination} to {source} by {key!r}")

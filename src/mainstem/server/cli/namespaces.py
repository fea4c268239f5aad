"""`namespace`: the boundary between tenants."""

from __future__ import annotations

from typing import Any

import click

from mainstem.model.errors import InvalidArgument
from mainstem.server.cli.api import Api, segment, url_option
from mainstem.server.cli.asking import confirm, yes_option
from mainstem.server.cli.output import json_option, print_done, print_facts, print_rows
from mainstem.server.cli.quotas import quota_option, read_quotas
from mainstem.server.cli.topics import read_settings, set_option
from mainstem.storage.engines import ENGINES

DEFAULT = "default"  # says: as the configuration has it


@click.group()
def namespace() -> None:
    """List, describe, add, alter and remove namespaces. A namespace is a tenant's own topics, queues and users; AMQP's
    virtual host."""


@namespace.command("ls")
@json_option
@url_option
def namespace_ls(as_json: bool, url: str) -> None:
    """Namespaces with what they hold."""
    columns = ["name", "topics", "views", "queues", "users", "connections", "stored_bytes"]
    print_rows(Api(url).rows("/v1/namespaces"), columns, as_json=as_json, empty="no namespaces")


@namespace.command("describe")
@click.argument("name")
@json_option
@url_option
def namespace_describe(name: str, as_json: bool, url: str) -> None:
    """One namespace: what it holds, who uses it, its settings."""
    print_facts(Api(url).get(f"/v1/namespaces/{segment(name)}"), as_json=as_json)


@namespace.command("add")
@click.argument("name")
@click.option("--cell", metavar="CELL", help="In a cluster: `new` gives it a cell of its own, else the name of one.")
@url_option
def namespace_add(name: str, cell: str | None, url: str) -> None:
    """Add a namespace; one that exists stays as it is."""
    facts = Api(url).post("/v1/namespaces", {"name": name, **({"cell": cell} if cell else {})})
    click.echo(f"added namespace {name}" + (f" in cell {facts['cell']}" if "cell" in facts else ""))


@namespace.command("alter")
@click.argument("name")
@set_option
@click.option("--engine", type=click.Choice([*ENGINES, DEFAULT]), help="Where its topics' bytes rest.")
@click.option("--durability", help="sync, interval:<ms>, os or none.")
@click.option("--retention", help="How long records are kept: 7d, unlimited.")
@click.option("--auto-create", type=click.Choice(["on", "off", DEFAULT]), help="Kafka clients make topics by asking.")
@quota_option
@json_option
@url_option
def namespace_alter(
    name: str,
    pairs: tuple[str, ...],
    auto_create: str | None,
    quotas: tuple[str, ...],
    as_json: bool,
    url: str,
    **named: Any,
) -> None:
    """Change what topics of a namespace begin with, and how much it may use. `default` goes back to the configuration's.

    Topics with settings of their own keep them. Records stay where they are; what is published from now on follows.
    """
    body: dict[str, Any] = {}
    policy = _policy(pairs, named)
    if policy:
        body["policy"] = policy
    if auto_create is not None:
        body["auto_create"] = None if auto_create == DEFAULT else auto_create == "on"
    if quotas:
        body["quota"] = read_quotas(quotas)
    if not body:
        raise InvalidArgument("nothing to change", fix="--retention 30d, --engine rocksdb, --auto-create off, ...")
    facts = Api(url).patch(f"/v1/namespaces/{segment(name)}", body)
    print_done(f"changed namespace {name}", facts, as_json)


def _policy(pairs: tuple[str, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Settings of topics; None for those that go back to the configuration's."""
    back = {pair.partition("=")[0]: None for pair in pairs if pair.partition("=")[2] == DEFAULT}
    back |= {"retention_ms" if one == "retention" else one: None for one, text in named.items() if text == DEFAULT}
    kept = tuple(pair for pair in pairs if pair.partition("=")[2] != DEFAULT)
    given = read_settings(kept, {one: None if text == DEFAULT else text for one, text in named.items()})
    return {**back, **given}


@namespace.command("rm")
@click.argument("name")
@click.option("--with-data", is_flag=True, help="Delete everything it holds for good; else only an empty one goes.")
@yes_option
@url_option
def namespace_rm(name: str, with_data: bool, yes: bool, url: str) -> None:
    """Remove a namespace. Its clients are disconnected."""
    api, path = Api(url), f"/v1/namespaces/{segment(name)}"
    held = api.get(path)["contents"]
    lost = ", ".join(f"{count} {kind}" for kind, count in held.items())
    if with_data and lost:
        confirm(f"Remove namespace {name} and for good {lost}?", yes)
    api.delete(path, **({"with_data": "true"} if with_data else {}))
    click.echo(f"removed namespace {name}")

"""`queue` and `group`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from mainstem.model.counted import counted
from mainstem.model.errors import InvalidArgument
from mainstem.server.cli.api import PAGE_ROWS, Api, segment, url_option
from mainstem.server.cli.asking import confirm, yes_option
from mainstem.server.cli.output import json_option, print_done, print_facts, print_rows
from mainstem.server.cli.values import Duration


@click.group()
def queue() -> None:
    """List, describe, create, alter, purge and remove queues. AMQP and MQTT ($queue/...) clients declare them too."""


@queue.command("ls")
@json_option
@url_option
def queue_ls(as_json: bool, url: str) -> None:
    """Queues of all protocols."""
    columns = ["name", "kind", "durable", "ready", "unacked", "dead", "consumers", "filters"]
    print_rows(Api(url).rows("/v1/queues"), columns, as_json=as_json, empty="no queues")


@queue.command("describe")
@click.argument("name")
@json_option
@url_option
def queue_describe(name: str, as_json: bool, url: str) -> None:
    """One queue in full: who consumes it, by which protocol, and how many messages each holds unacknowledged."""
    facts = Api(url).get(f"/v1/queues/{segment(name)}")
    if as_json:
        print_facts(facts, as_json=True)
        return
    clients = facts.pop("clients", [])
    print_facts(facts, as_json=False)
    click.echo()
    columns = ["client", "protocol", "group", "unacked", "acks", "priority", "waits"]
    print_rows(clients, columns, as_json=False, empty="nobody consumes it now")


@queue.command("create")
@click.argument("name")
@click.argument("topic_filter", metavar="FILTER")
@click.option("--where", help="A condition on key and headers, as for views.")
@click.option("--from", "start", type=click.Choice(["latest", "earliest"]), default="latest", show_default=True)
@click.option("--ttl", type=Duration(), metavar="DURATION", help="How long a message may wait.")
@click.option("--length", type=int, help="Messages it holds; the oldest go first.")
@click.option("--attempts", type=int, help="Deliveries before a message is dead-lettered.")
@click.option("--lock", type=Duration(), metavar="DURATION", help="How long a consumer that pulls may hold a message.")
@click.option("--dead-letter", metavar="EXCHANGE", help="Where dead letters are published.")
@json_option
@url_option
def queue_create(
    name: str,
    topic_filter: str,
    where: str | None,
    start: str,
    ttl: int | None,
    length: int | None,
    attempts: int | None,
    lock: int | None,
    dead_letter: str | None,
    as_json: bool,
    url: str,
) -> None:
    """Make a durable queue of what FILTER means. AMQP, MQTT ($queue/NAME) and Kafka share groups take from it."""
    body = {
        "name": name,
        "filter": topic_filter,
        "where": where,
        "from": start,
        "message_ttl_ms": ttl,
        "length_max": length,
        "deliveries_max": attempts,
        "lock_ms": lock,
        "dead_letter_exchange": dead_letter,
    }
    answer = Api(url).post("/v1/queues", body)
    ready = counted(answer["ready"], "message")
    take = f"mainstem sub 'amqp://localhost/?queue={name}'"
    print_done(f"created queue {name}: {ready} ready; take them by any protocol, for example: {take}", answer, as_json)


@queue.command("alter")
@click.argument("name")
@click.option("--ttl", metavar="DURATION|none", help="How long a message may wait.")
@click.option("--length", metavar="N|none", help="Messages it holds; the oldest go first.")
@click.option("--attempts", type=int, help="Deliveries before a message is dead-lettered; 0 is no limit.")
@click.option("--lock", metavar="DURATION", help="How long a consumer that pulls may hold a message.")
@click.option("--dead-letter", metavar="EXCHANGE|none", help="Where dead letters are published.")
@json_option
@url_option
def queue_alter(name: str, as_json: bool, url: str, **given: Any) -> None:
    """Change the limits of a queue while it is used; what is over them leaves at once."""
    from mainstem.server.units import parse_duration_ms

    fields: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "ttl": ("message_ttl_ms", parse_duration_ms),
        "length": ("length_max", int),
        "attempts": ("deliveries_max", int),
        "lock": ("lock_ms", parse_duration_ms),
        "dead_letter": ("dead_letter_exchange", str),
    }
    body = {}
    for option, (field, read) in fields.items():
        if given[option] is not None:
            try:
                body[field] = None if given[option] == "none" else read(given[option])
            except ValueError as error:
                raise InvalidArgument(f"--{option.replace('_', '-')}: {error}") from None
    if not body:
        raise InvalidArgument("nothing to change", fix="--ttl, --length, --attempts, --lock or --dead-letter")
    facts = Api(url).patch(f"/v1/queues/{segment(name)}", body)
    print_done(f"changed queue {name}: {counted(facts['ready'], 'message')} ready", facts, as_json)


@queue.command("purge")
@click.argument("name")
@yes_option
@url_option
def queue_purge(name: str, yes: bool, url: str) -> None:
    """Take everything that is ready out of a queue; the records stay in the log."""
    confirm(f"Purge queue {name}?", yes)
    answer = Api(url).post(f"/v1/queues/{segment(name)}/purge")
    click.echo(f"purged {counted(answer['purged'], 'message')} from {name}")


@queue.command("dead")
@click.argument("name")
@json_option
@url_option
def queue_dead(name: str, as_json: bool, url: str) -> None:
    """Dead letters that a queue without a dead-letter exchange keeps."""
    columns = ["position", "reason", "attempts", "topic", "key", "value"]
    answer = Api(url).get(f"/v1/queues/{segment(name)}/dead", limit=PAGE_ROWS)
    print_rows(answer["items"], columns, as_json=as_json, empty="no dead letters")
    more = answer["total"] - len(answer["items"])
    if more > 0:
        click.echo(f"and {more} more behind them", err=True)


@queue.command("redrive")
@click.argument("name")
@click.option("--position", type=int, help="Only this one, by the position that `mainstem queue dead` shows.")
@url_option
def queue_redrive(name: str, position: int | None, url: str) -> None:
    """Dead letters become ready again, their attempts forgotten. Nothing is copied."""
    answer = Api(url).post(f"/v1/queues/{segment(name)}/redrive", {"position": position})
    click.echo(f"{counted(answer['redriven'], 'message')} of {name} ready again")


@queue.command("discard")
@click.argument("name")
@click.option(
    "--position", type=int, multiple=True, help="Only this one (repeatable), as `mainstem queue dead` shows it."
)
@yes_option
@url_option
def queue_discard(name: str, position: tuple[int, ...], yes: bool, url: str) -> None:
    """Delete dead letters that a queue keeps. The records stay in the log."""
    confirm(f"Delete {counted(len(position), 'dead letter') if position else 'all dead letters'} of {name}?", yes)
    body = {"positions": [str(one) for one in position]} if position else {}
    answer = Api(url).post(f"/v1/queues/{segment(name)}/discard", body)
    click.echo(f"{counted(answer['discarded'], 'dead letter')} of {name} discarded")


@queue.command("rm")
@click.argument("name")
@yes_option
@url_option
def queue_rm(name: str, yes: bool, url: str) -> None:
    """Remove a queue; the records stay in the log."""
    confirm(f"Remove queue {name}?", yes)
    Api(url).delete(f"/v1/queues/{segment(name)}")
    click.echo(f"removed queue {name}")


@click.group()
def group() -> None:
    """List, describe, create, reset and remove Kafka consumer groups."""


@group.command("ls")
@json_option
@url_option
def group_ls(as_json: bool, url: str) -> None:
    """Groups, with their lag."""
    columns = ["name", "kind", "state", "members", "reads", "lag"]
    print_rows(Api(url).rows("/v1/groups"), columns, as_json=as_json, empty="no consumer groups")


@group.command("describe")
@click.argument("name")
@json_option
@url_option
def group_describe(name: str, as_json: bool, url: str) -> None:
    """One group: members, offsets and lag of each partition."""
    print_facts(Api(url).get(f"/v1/groups/{segment(name)}"), as_json=as_json)


@group.command("lag")
@click.argument("name", required=False)
@json_option
@url_option
def group_lag(name: str | None, as_json: bool, url: str) -> None:
    """The lag of each partition of a group, or of all groups."""
    api = Api(url)
    names = [name] if name else [row["name"] for row in api.rows("/v1/groups")]
    rows = [{"group": one, **row} for one in names for row in api.get(f"/v1/groups/{segment(one)}")["offsets"]]
    columns = ["group", "topic", "partition", "offset", "end_offset", "lag"]
    print_rows(rows, columns, as_json=as_json, empty="no committed offsets")


@group.command("create")
@click.argument("name")
@click.argument("topic")
@click.option("--from", "start", default="earliest", show_default=True, metavar="WHERE", help="As with `group reset`.")
@json_option
@url_option
def group_create(name: str, topic: str, start: str, as_json: bool, url: str) -> None:
    """Give a group its place in TOPIC (as Kafka spells it) before its consumers start."""
    facts = Api(url).post("/v1/groups", {"name": name, "topic": topic, "from": start})
    print_done(f"created group {name}: {counted(facts['lag'], 'record')} of {topic} ahead of it", facts, as_json)


@group.command("reset")
@click.argument("name")
@click.option("--topic", help="Only this topic, as Kafka spells it.")
@click.option("--to", required=True, metavar="WHERE", help="earliest, latest, @offset, -10, ts:<RFC 3339>.")
@click.option("--execute", is_flag=True, help="Do it; without, only what would change is shown.")
@json_option
@url_option
def group_reset(name: str, topic: str | None, to: str, execute: bool, as_json: bool, url: str) -> None:
    """Move a group's offsets. The group must have no members."""
    body = {"group": name, "topic": topic, "to": to, "dry_run": not execute}
    answer = Api(url).post("/v1/groups-reset", body)
    print_rows(answer["changes"], ["topic", "partition", "from", "to"], as_json=as_json, empty="nothing to change")
    if answer["changes"] and not execute and not as_json:
        click.echo("nothing was changed; add --execute to do it", err=True)


group.add_command(group_reset, "alter")


@group.command("rm")
@click.argument("name")
@yes_option
@url_option
def group_rm(name: str, yes: bool, url: str) -> None:
    """Delete a group and its offsets."""
    confirm(f"Delete group {name} and its offsets?", yes)
    Api(url).delete(f"/v1/groups/{segment(name)}")
    click.echo(f"removed group {name}")

"""`trace`: the way of one message, and the messages whose way was followed."""

from __future__ import annotations

import time
from typing import Any

import click

from mainstem.model.errors import InvalidArgument
from mainstem.server.cli.api import Api, url_option
from mainstem.server.cli.output import json_option, print_facts, print_rows, show_time_ns
from mainstem.server.cli.topics import topic_named


@click.command()
@click.argument("topic", default="")
@click.argument("place", default="")
@click.option("-k", "--key", default="", help="Only with this key.")
@click.option("--id", "trace_id", default="", help="A trace id, a whole traceparent, or a stamp.")
@click.option("--limit", default=20, type=click.IntRange(1, 2_000), show_default=True, help="Lines at most.")
@json_option
@url_option
def trace(topic: str, place: str, key: str, trace_id: str, limit: int, as_json: bool, url: str) -> None:
    """Where a message went: `mainstem trace orders/eu 42` (or 0·42, with its partition). Without a place: the messages that
    were followed, of topics with the setting trace (`mainstem topic alter TOPIC --set trace=1%`)."""
    api = Api(url)
    name = topic_named(topic) if topic else ""
    if place:
        partition, offset = _place(place)
        way = api.get("/v1/trace", topic=name, partition=partition, offset=offset)
        if as_json:
            print_facts(way, as_json=True)
        else:
            _print_way(way)
        return
    asked = {"topic": name or None, "key": key or None, "trace_id": trace_id or None}
    found = api.get("/v1/traces", limit=limit, **asked)["items"]
    if len(found) == 1 and not as_json:
        _print_steps(found[0])
        return
    rows = found if as_json else [_row(one) for one in found]
    columns = ["time", "topic", "offset", "key", "protocol", "client", "steps", "took_us", "trace_id"]
    print_rows(
        rows, columns, as_json=as_json, empty="no message was followed: mainstem topic alter TOPIC --set trace=1%"
    )


def _place(text: str) -> tuple[int, int]:
    partition, mark, offset = text.replace("·", ".").rpartition(".")
    if not offset.isdecimal() or (mark and not partition.isdecimal()):
        raise InvalidArgument(f"{text!r} is not an offset", fix="42, or 0·42 with the partition")
    return int(partition or 0), int(offset)


def _row(one: dict[str, Any]) -> dict[str, Any]:
    took = max((step["after_us"] for step in one["steps"]), default=0)
    return {**one, "time": show_time_ns(one["stamp"]), "steps": len(one["steps"]), "took_us": took}


def _print_way(way: dict[str, Any]) -> None:
    published, place = way["published"], way["place"]
    by = f" by {published['client']}" if published["client"] else ""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(published["stamp"] / 1e9))
    click.echo(f"published   {published['protocol']}{by} at {when}.{published['stamp'] // 1_000 % 1_000_000:06d}")
    shared = ", shared" if place["shared"] else ""
    click.echo(
        f"{'durable' if place['durable'] else 'written':<10}  log {place['log']} ({place['engine']}{shared}) at offset "
        f"{place['offset']}"
    )
    for one in way["stations"]:
        tried = f", {one['attempts']} failed attempts" if one["attempts"] else ""
        detail = f" ({one['detail']})" if one["detail"] else ""
        click.echo(f"{one['state']:<10}  {one['kind']} {one['name']}{tried}{detail}")
    if not way["stations"]:
        click.echo("no queue, session, group or view takes this topic now", err=True)
    if way["trace"] is not None:
        click.echo()
        _print_steps(way["trace"])


def _print_steps(one: dict[str, Any]) -> None:
    click.echo(f"{one['topic']} at offset {one['offset']}, trace id {one['trace_id']}")
    for step in one["steps"]:
        within = f" ±{step['within_us']}" if step["within_us"] > 1 else ""
        by = f" by {step['protocol']}" if step["protocol"] else ""
        tried = f", attempt {step['attempts'] + 1}" if step["attempts"] else ""
        click.echo(f"{step['after_us']:>12} µs{within:<8} {step['what']:<10} {step['kind']} {step['who']}{by}{tried}")

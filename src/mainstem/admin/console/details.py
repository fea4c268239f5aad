"""One thing in full: a queue, an exchange, a pipeline, a group, a view, a session, a connection, a user, a namespace.

Names lead here.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from mainstem.admin.answers.consumers import DeadLetter
from mainstem.admin.api.namespaces import namespace_row
from mainstem.admin.api.queues import require_stream_consumer
from mainstem.admin.api.users import user_row
from mainstem.admin.api.views import view_facts
from mainstem.admin.calls import Call
from mainstem.admin.connections import connection_row, find_connection, seen_by
from mainstem.admin.consumers import any_queue_facts
from mainstem.admin.cursors import (
    dead_row,
    group_facts,
    queues_of,
    session_facts,
    sessions_of,
    stream_consumer_name,
    stream_consumers,
)
from mainstem.admin.openapi import openapi_document
from mainstem.admin.pipelines import flow_rows
from mainstem.admin.rights import admit, refusal
from mainstem.admin.way import way_of
from mainstem.broker.namespaces.quotas import NAMESPACE, USER
from mainstem.broker.queues.exchanges import Exchange
from mainstem.broker.queues.opening import check_taker
from mainstem.broker.rights.access import Action
from mainstem.broker.rights.operations import NEEDS
from mainstem.broker.streams.consumer import Consumer
from mainstem.broker.tracing.stations import groups_of_record, queues_of_record, sessions_of_record
from mainstem.broker.tracing.traces import Trace
from mainstem.model.errors import InvalidArgument, MainstemError, NotFound
from mainstem.model.topic import topic_of_kafka
from mainstem.model.topic_filter import matches

DEAD_SHOWN = 50
BINDINGS_SHOWN = 500
TRACES_SHOWN = 100
READERS_SHOWN = 50


def _name(call: Call) -> str:
    name: str = call.query.get("name", "")
    return name


async def queue_page(call: Call) -> dict[str, Any]:
    name = _name(call)
    call.require_object(name, "queue.describe")
    facts, found = any_queue_facts(call.running, call.namespace, name)
    if isinstance(found, Consumer):
        require_stream_consumer(call, found)
        facts["settings"] = {name: _shown_setting(name, value) for name, value in facts["settings"].items()}
        return {**facts, "dead_letters": [], "bindings": [], "stream": found.stream.name}
    dead: list[DeadLetter] = []
    try:
        call.require_object(name, "queue.consume")
        check_taker(call.running.broker.access, call.principal, found)
        dead = [dead_row(taken, reason, time_ms) for taken, reason, time_ms in found.browse_dead(DEAD_SHOWN)]
    except MainstemError:  # who may not take from it sees how many there are, not what they say
        dead = []
    bindings = [
        {"source": one.source or "(default)", "key": one.key}
        for one in found.queues.exchanges.bindings_to(found.name, to_queue=True)
    ]
    return {**facts, "dead_letters": dead, "bindings": bindings, "stream": None}


def _shown_setting(name: str, value: Any) -> Any:
    """JetStream's durations are nanoseconds, which nobody reads."""
    is_duration = name in ("ack_wait", "idle_heartbeat", "inactive_threshold") and isinstance(value, int)
    return f"{value / 1e9:g} s" if is_duration else value


async def exchange_page(call: Call) -> dict[str, Any]:
    name = _name(call)
    call.require_object(name, "exchange.describe")
    exchanges = queues_of(call.running, call.namespace).exchanges
    exchange = exchanges.get(name)
    bound = [*exchanges.bindings_from(name), *exchanges.bindings_to(name, to_queue=False)]
    rows = [
        {
            "source": one.source,
            "destination": one.destination,
            "kind": "queue" if one.to_queue else "exchange",
            "key": one.key,
            "arguments": one.table,
        }
        for one in bound[:BINDINGS_SHOWN]
    ]
    return {**exchange_row(exchange), "arguments": exchange.arguments, "bindings": rows, "bound": len(bound)}


def exchange_row(exchange: Exchange) -> dict[str, Any]:
    facts = {name: getattr(exchange, name) for name in ("type", "durable", "auto_delete", "internal")}
    return {"name": exchange.name, **facts, "alternate": exchange.alternate}


async def pipeline_page(call: Call) -> dict[str, Any]:
    name = _name(call)
    flows = [one for one in flow_rows(call.running, call.namespace) if one["pipeline"] == name]
    if not flows:
        raise NotFound(f"no pipeline {name} has reported to this broker", fix="mainstem pipeline ls")
    return {"name": name, "flows": flows}


async def api_page(_call: Call) -> dict[str, Any]:
    """The OpenAPI document, for people."""
    document = openapi_document()
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append({"path": path, "method": method.upper(), **operation})
    return {"groups": groups, "answers": document["components"]["schemas"]}


def topic_readers(call: Call, topic: bytes) -> tuple[list[dict[str, str]], int]:
    """Queues, JetStream consumers, sessions and groups that read a topic, and how many of them the caller may not see."""
    running, namespace = call.running, call.namespace
    now = namespace.broker.stamps.next
    queues = [("queue", one.name) for one in queues_of_record(namespace, topic, now)]
    sessions = [("session", _text(one.client_id)) for one in sessions_of_record(namespace, topic, now)]
    groups = [("group", one.name) for one in groups_of_record(namespace, topic, 0, 0)]
    consumers = [
        ("queue", stream_consumer_name(one)) for one in stream_consumers(running, namespace) if _reads(one, topic)
    ]
    found = [*queues, *consumers, *sessions, *groups]
    seen = [{"kind": kind, "name": name} for kind, name in found if _describes(call, kind, name)]
    return seen[:READERS_SHOWN], len(found) - len(seen)


def _describes(call: Call, kind: str, name: str) -> bool:
    need = NEEDS[f"{kind}.describe"]
    return refusal(call.running, call.principal, need, call.query.get("namespace", ""), name) is None


def _reads(consumer: Consumer, topic: bytes) -> bool:
    filters = consumer.settings.filters or consumer.stream.settings.filters
    return any(matches(one, topic) for one in filters)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


async def trace_page(call: Call) -> dict[str, Any]:
    """One message by topic and place; or those that were followed, by topic, key or trace id."""
    asked = {name: call.query.get(name, "") for name in ("topic", "at", "key", "trace_id")}
    facts: dict[str, Any] = {**asked, "message": None, "items": None, "trace": None}
    if asked["topic"] and asked["at"]:
        call.require(Action.CONSUME, asked["topic"].encode())
        partition, offset = _place(asked["at"])
        return {**facts, **way_of(call.running, call.namespace, asked["topic"], partition, offset)}
    tracer = call.running.broker.tracer
    found = tracer.traces.find(
        call.namespace.name, topic=asked["topic"], key=asked["key"], trace_id=asked["trace_id"].strip()
    )
    seen = (one for one in found if call.allows(Action.CONSUME, one.topic.encode()))
    rows = [{**one.to_document(), "partition": _partition_of(call, one)} for one in islice(seen, TRACES_SHOWN)]
    return {**facts, "items": rows, "skipped": tracer.skipped if call.principal.admin else 0}


def _place(text: str) -> tuple[int, int]:
    """`0·42`, `0.42` or `42`."""
    partition, mark, offset = text.replace("·", ".").strip().rpartition(".")
    if not offset.isdecimal() or (mark and not partition.isdecimal()) or len(offset) > 18 or len(partition) > 9:
        raise InvalidArgument(f"{text[:100]!r} is not a partition and offset", fix="0·42")
    return int(partition or 0), int(offset)


def _partition_of(call: Call, trace: Trace) -> int:
    log = call.running.broker.logs.by_id.get(trace.log)
    return call.namespace.partition_of(trace.topic.encode(), log) if log is not None else 0


async def group_page(call: Call) -> dict[str, Any]:
    call.require_object(_name(call), "group.describe")
    facts = group_facts(call.running, call.namespace, _name(call))
    topics = {one["topic"]: topic_of_kafka(one["topic"]).decode(errors="replace") for one in facts["offsets"]}
    return {**facts, "names": topics}


async def view_page(call: Call) -> dict[str, Any]:
    name = _name(call).encode()
    call.require(Action.DESCRIBE, name)
    view = call.namespace.views.get(name)
    if view is None:
        raise NotFound(f"there is no view {_name(call)}", fix="mainstem view ls")
    return {**view_facts(call.running, view)}


async def session_page(call: Call) -> dict[str, Any]:
    key = call.namespace.name.encode() + b"\0" + _name(call).encode()
    session = sessions_of(call.running).find(key)
    if session is None:
        raise NotFound(f"there is no session {_name(call)}", fix="mainstem session ls")
    return {**session_facts(call.running, call.namespace, session)}


async def connection_page(call: Call) -> dict[str, Any]:
    connection_id = call.query.get("id", "")
    protocol, connection = find_connection(call.running, connection_id, seen_by(call))
    row = connection_row(connection_id.partition("-")[0], protocol, connection)
    return {**row, "name": row["client"] or connection_id}


async def user_page(call: Call) -> dict[str, Any]:
    broker = call.running.broker
    row, use = user_row(broker.access.user(_name(call))), broker.quotas.shown(USER, _name(call))
    return {**row, "all_roles": sorted(broker.access.roles), "actions": list(Action), "use": use}


async def namespace_page(call: Call) -> dict[str, Any]:
    broker = call.running.broker
    namespace = admit(broker, call.principal, call.need, _name(call) or "/")
    users = sorted(user.name for user in broker.access.users.values() if user.namespace == namespace.name)
    use = broker.quotas.shown(NAMESPACE, namespace.name)
    return {**namespace_row(call, namespace), "user_names": users, "use": use}

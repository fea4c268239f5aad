"""/v1/queues: what every protocol may take from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from mainstem.admin.answers import CountedPage, Deleted, Page
from mainstem.admin.answers.consumers import DeadLetter, Discarded, Purged, QueueFacts, QueueRow, Redriven
from mainstem.admin.calls import AFTER, LIMIT, Call, Field, Operation, page
from mainstem.admin.consumers import any_queue_facts, queue_facts
from mainstem.admin.cursors import (
    dead_row,
    queue_row,
    queues_of,
    stream_consumer_name,
    stream_consumer_row,
    stream_consumers,
)
from mainstem.admin.long_lists import in_order, in_slices
from mainstem.broker.queues.bindings import ANYTHING, NOW, Reach
from mainstem.broker.queues.dead_letters import discard
from mainstem.broker.queues.opening import check_taker, opening_rights
from mainstem.broker.queues.queue import Queue
from mainstem.broker.queues.settings import LOCK_MS, QueueSettings
from mainstem.broker.rights.access import Action
from mainstem.broker.streams.consumer import Consumer
from mainstem.model.errors import InvalidArgument, NotAuthorized, NotFound
from mainstem.model.topic_filter import check_filter

COUNT_MAX = 2**63 - 1
NAME_BYTES_MAX = 255  # AMQP and MQTT have no longer ones
DURATION_MS_MAX = COUNT_MAX // 1_000_000  # they are kept in nanoseconds


def named_queue(call: Call) -> Queue:
    return queues_of(call.running, call.namespace).get(call.path["name"])


async def list_queues(call: Call) -> Page[QueueRow]:
    """Named queues, and JetStream's consumers as `stream/consumer`."""
    return page(*await page_of_queues(call, after=call.query.get("after", ""), limit=call.limit))


async def page_of_queues(call: Call, *, after: str, limit: int, search: str = "") -> tuple[list[QueueRow], str | None]:
    """So many rows in order of name, and where the next page goes on. Rights are asked for only as far as the page goes."""
    turns, tenant = call.running.broker.turns, call.namespace.name
    consumers = ((stream_consumer_name(one), one) for one in stream_consumers(call.running, call.namespace))
    named: Iterator[tuple[str, Queue | Consumer]] = ((one.name, one) for one in queues_of(call.running, call.namespace))
    ordered = await in_order(
        turns,
        tenant,
        chain(named, consumers),
        key=lambda pair: pair[0],
        where=lambda pair: pair[0] > after and search in pair[0],
    )
    rows: list[QueueRow] = []
    async for name, one in in_slices(turns, tenant, ordered):
        if not (may_see(call, one) if isinstance(one, Consumer) else call.may(name, "queue.describe")):
            continue
        if len(rows) == limit:
            return rows, rows[-1]["name"]
        rows.append(stream_consumer_row(one) if isinstance(one, Consumer) else queue_row(one))
    return rows, None


async def describe_queue(call: Call) -> QueueFacts:
    """With its consumers, and how many messages each holds unacknowledged."""
    facts, found = any_queue_facts(call.running, call.namespace, call.path["name"])
    if isinstance(found, Consumer):
        require_stream_consumer(call, found)
    return facts


def require_stream_consumer(call: Call, consumer: Consumer) -> None:
    if not may_see(call, consumer):
        raise NotAuthorized(f"user {call.principal.name} may not describe what consumer {consumer.name} reads")


def may_see(call: Call, consumer: Consumer) -> bool:
    """Who sees a JetStream consumer may describe all that it reads."""
    access = call.running.broker.access
    return all(access.allows_filter(call.principal, Action.DESCRIBE, one) for one in consumer.rights)


async def create_queue(call: Call) -> QueueRow:
    """As MQTT's `$queue/NAME/FILTER` makes one: every protocol may take from it."""
    body, namespace = call.body, call.namespace
    topic_filter = body["filter"].encode()
    if not body["name"]:
        raise InvalidArgument("a queue must have a name")
    if len(body["name"].encode()) > NAME_BYTES_MAX:
        raise InvalidArgument(f"a queue's name has at most {NAME_BYTES_MAX} bytes, not {len(body['name'].encode())}")
    check_filter(topic_filter)
    check_limits(body)
    if body.get("from") not in (None, "earliest", "latest"):
        raise InvalidArgument(f"from={body['from']!r} is not understood", fix="earliest or latest")
    start = 0 if body.get("from") == "earliest" else NOW
    settings = QueueSettings(
        message_ttl_ms=body.get("message_ttl_ms"),
        length_max=body.get("length_max"),
        deliveries_max=body.get("deliveries_max") or 0,
        lock_ms=body.get("lock_ms") or LOCK_MS,
        dead_letter_exchange=body.get("dead_letter_exchange"),
    )
    access = call.running.broker.access
    for action, wanted, what in opening_rights(body["name"], settings, namespace.name, enters=topic_filter):
        if not access.allows_all(call.principal, action, wanted):
            raise NotAuthorized(f"user {call.principal.name} may not {action} all of {what}")
    queues = queues_of(call.running, namespace)
    reaches = [Reach(ANYTHING, topic_filter, start=start)]
    queue, written = queues.declare(body["name"], settings, reaches=reaches, condition=body.get("where") or "")
    if written is not None:
        await written
    return queue_row(queue)


async def alter_queue(call: Call) -> QueueFacts:
    """What it was declared with by AMQP stays as it is, so that declaring it again still finds it the same."""
    queue = named_queue(call)
    if not call.body:
        raise InvalidArgument("nothing to change", fix=f"one of {', '.join(one.name for one in QUEUE_LIMITS)}")
    check_limits(call.body)
    changes: dict[str, Any] = dict(call.body)
    for name in ("deliveries_max", "lock_ms"):  # these have a value for "no limit"
        if name in changes:
            changes[name] = changes[name] or getattr(QueueSettings(), name)
    written = queue.queues.alter(queue, replace(queue.declared, **changes))
    if written is not None:
        await written
    return queue_facts(call.running, queue)


def check_limits(body: dict[str, Any]) -> None:
    for one in QUEUE_LIMITS:
        value, most = body.get(one.name), DURATION_MS_MAX if one.name.endswith("_ms") else COUNT_MAX
        if isinstance(value, int) and not 0 <= value <= most:
            raise InvalidArgument(f"{one.name} is {value}", fix=f"a number from 0 to {most}, or null")


async def purge_queue(call: Call) -> Purged:
    return {"purged": named_queue(call).purge()}


async def list_dead(call: Call) -> CountedPage[DeadLetter]:
    """Dead letters that a queue without a dead-letter exchange keeps: where they lie, why and since when."""
    queue = named_queue(call)
    check_taker(call.running.broker.access, call.principal, queue)
    found = queue.browse_dead(call.limit)
    rows = [dead_row(taken, reason, time_ms) for taken, reason, time_ms in found]
    return {"items": rows, "next": None, "total": queue.dead_count}


async def redrive_queue(call: Call) -> Redriven:
    """Nothing is copied: their state is forgotten, so they are ready again."""
    queue = named_queue(call)
    positions = _positions(call)
    redriven = queue.redrive(positions)
    _check_found(queue, positions, redriven)
    return {"redriven": redriven}


async def discard_dead(call: Call) -> Discarded:
    """They are settled; the records stay in the log."""
    queue = named_queue(call)
    positions = _positions(call)
    discarded = discard(queue, positions)
    _check_found(queue, positions, discarded)
    return {"discarded": discarded}


def _positions(call: Call) -> list[int] | None:
    """Those that are named, one or several; None: all."""
    if call.query.get("position"):
        return [call.number("position", -1)]
    if call.body.get("position") is not None:
        return [call.body["position"]]
    given = call.body.get("positions")
    if given is None:
        return None
    try:
        return [int(one) for one in given]
    except (ValueError, TypeError):
        raise InvalidArgument("positions are whole numbers, or texts of them") from None


def _check_found(queue: Queue, positions: list[int] | None, found: int) -> None:
    if positions is not None and not found:
        told = ", ".join(map(str, positions[:3])) or "no position"
        raise NotFound(f"queue {queue.name} has no dead letter at {told}", fix=f"mainstem queue dead {queue.name}")


async def delete_queue(call: Call) -> Deleted:
    queue = named_queue(call)
    written = queue.queues.delete(queue)
    if written is not None:
        await written
    return {"deleted": call.path["name"]}


QUEUE_LIMITS = (
    Field("message_ttl_ms", "integer", "How long a message may wait."),
    Field("length_max", "integer", "Messages it holds; the oldest go first."),
    Field("deliveries_max", "integer", "Attempts before a message is dead-lettered; 0 is no limit."),
    Field("lock_ms", "integer", "How long a consumer that pulls may hold a message; 30,000 by default."),
    Field("dead_letter_exchange", "string", "Where dead letters are published; without, the queue keeps them."),
)

POSITION_QUERY = (Field("position", "integer", "As in the body, for who cannot write 64 bits in JSON."),)
POSITIONS = (
    Field("position", "integer", "Only this one, by the position that the list shows."),
    Field("positions", "array", "Only these; as texts, where JSON has no 64 bits."),
)

OPERATIONS = (
    Operation("GET", "/v1/queues", list_queues, "Queues of all protocols.", "queue.list", query=(LIMIT, AFTER)),
    Operation(
        "POST",
        "/v1/queues",
        create_queue,
        "Make a durable queue over a topic filter.",
        "queue.create",
        body=(
            Field("name", "string", "Its name.", required=True),
            Field("filter", "string", "What enters it, for example jobs/#.", required=True),
            Field("where", "string", "A condition on key and headers, as for views."),
            Field("from", "string", "earliest: what is already stored enters too; latest is the default."),
            *QUEUE_LIMITS,
        ),
        names="name",
    ),
    Operation(
        "PATCH",
        "/v1/queues/{name:path}",
        alter_queue,
        "Change the limits of a queue while it is used; null takes one away.",
        "queue.configure",
        body=QUEUE_LIMITS,
        names="name",
    ),
    Operation(
        "POST",
        "/v1/queues/{name:path}/purge",
        purge_queue,
        "Take everything that is ready out of a queue.",
        "queue.purge",
        names="name",
    ),
    Operation(
        "GET",
        "/v1/queues/{name:path}/dead",
        list_dead,
        "Dead letters a queue keeps, oldest first.",
        "queue.consume",
        query=(LIMIT,),
        names="name",
    ),
    Operation(
        "POST",
        "/v1/queues/{name:path}/redrive",
        redrive_queue,
        "Dead letters a queue keeps become ready again, their attempts forgotten.",
        "queue.redrive",
        query=POSITION_QUERY,
        body=POSITIONS,
        names="name",
    ),
    Operation(
        "POST",
        "/v1/queues/{name:path}/discard",
        discard_dead,
        "Dead letters a queue keeps are forgotten; the records stay in the log.",
        "queue.purge",
        query=POSITION_QUERY,
        body=POSITIONS,
        names="name",
    ),
    Operation(
        "GET",
        "/v1/queues/{name:path}",
        describe_queue,
        "One queue in full: its settings, its consumers and how many messages each holds unacknowledged.",
        "queue.describe",
        names="name",
    ),
    Operation(
        "DELETE",
        "/v1/queues/{name:path}",
        delete_queue,
        "Remove a queue; the records stay in the log.",
        "queue.delete",
        names="name",
    ),
)

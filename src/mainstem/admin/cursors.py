"""How far every consumer has come: Kafka groups, queues and MQTT sessions, as rows of one table."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

from mainstem.admin.answers.consumers import (
    CursorRow,
    DeadLetter,
    GroupFacts,
    GroupOffset,
    InFlight,
    OffsetChange,
    QueueRow,
    SessionFacts,
)
from mainstem.admin.long_lists import in_order, in_slices
from mainstem.admin.messages import open_source, record_facts, start_offsets
from mainstem.admin.running import Running
from mainstem.broker.groups.registry import Commit, Groups
from mainstem.broker.groups.share import ShareGroup
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.queues.queue import Queue, Taken
from mainstem.broker.queues.registry import Queues, QueueService
from mainstem.broker.sessions.sessions import DONE, NEVER, Session, Sessions
from mainstem.broker.streams.consumer import Consumer
from mainstem.broker.streams.joined import JoinedConsumer
from mainstem.log.damaged import readable_offset
from mainstem.log.log import Log
from mainstem.model.counted import counted
from mainstem.model.errors import InvalidArgument, MainstemError, NotFound
from mainstem.model.topic import topic_of_kafka
from mainstem.model.topic_filter import literal_filter
from mainstem.storage.engine import NotLocal

LAG_CURSORS_MAX = 200  # looked at for the overview's largest lag
IN_FLIGHT_SHOWN = 1_000
ASSIGNED_SHOWN = 200  # partitions of one member
TENANT_MARK = "\x01"  # between namespace and group id, outside of the default namespace


def groups_of(running: Running) -> Groups:
    return running.broker.coordinator.groups


def mqtt_service(running: Running) -> Any:
    """What both MQTT listeners share; None where both are switched off. Its class belongs to a layer beside this one."""
    return getattr(running.servers.get("mqtt") or running.servers.get("ws"), "service", None)


def sessions_of(running: Running) -> Sessions:
    return running.broker.session_keeper.sessions


def queue_service(running: Running) -> QueueService:
    return running.broker.queues


def queues_of(running: Running, namespace: Namespace) -> Queues:
    return queue_service(running).of(namespace)


async def cursor_rows(running: Running, namespace: Namespace, begin: int, count: int) -> list[CursorRow]:
    """So many rows from the `begin`th on, in order of name within each kind, so that a page can go on where the one before
    ended. A lag is counted only for rows that are asked for."""
    turns, tenant, rows = running.broker.turns, namespace.name, list[CursorRow]()
    queues = await in_order(turns, tenant, queues_of(running, namespace), key=lambda one: one.name)
    consumers = await in_order(turns, tenant, stream_consumers(running, namespace), key=stream_consumer_name)
    ordered = chain(
        (partial(group_row, running, namespace, name) for name in await group_names(running, namespace)),
        (partial(queue_cursor, running, queue) for queue in queues),
        (partial(stream_cursor, consumer) for consumer in consumers),
        (partial(session_row, running, namespace, one) for one in await sessions_in(running, namespace)),
    )
    async for row in in_slices(turns, tenant, islice(ordered, begin, begin + count), at_once=1):
        rows.append(row())
    return rows


def cursors_of(running: Running, namespace: Namespace) -> Iterator[Callable[[], CursorRow]]:
    """In no order; take them before anything else happens."""
    for name in _groups_in(running, namespace):
        yield partial(group_row, running, namespace, name)
    for queue in queues_of(running, namespace):
        yield partial(queue_cursor, running, queue)
    yield from (partial(stream_cursor, consumer) for consumer in stream_consumers(running, namespace))
    sessions = sessions_of(running)
    for key in sessions.keys_from(namespace.name.encode() + b"\0"):
        session = sessions.look(key)
        if session is not None:
            yield partial(session_row, running, namespace, session)


async def sessions_in(running: Running, namespace: Namespace, after: bytes = b"") -> Iterator[Session]:
    """By client id."""
    sessions, prefix = sessions_of(running), namespace.name.encode() + b"\0"
    keys = sessions.keys_from(prefix)
    ordered = await in_order(running.broker.turns, namespace.name, keys, where=lambda key: key > prefix + after)
    return (session for session in map(sessions.look, ordered) if session is not None)


def lag_max(running: Running) -> int:
    """The largest lag among the first so many cursors of each namespace."""
    namespaces = running.broker.namespaces.values()
    rows = (row() for one in namespaces for row in islice(cursors_of(running, one), LAG_CURSORS_MAX))
    return max((row["lag"] for row in rows), default=0)


# -- Kafka groups


async def group_names(running: Running, namespace: Namespace, after: str = "") -> Iterator[str]:
    """In order."""
    found = _groups_in(running, namespace)
    return await in_order(running.broker.turns, namespace.name, found, where=lambda name: name > after)


def _groups_in(running: Running, namespace: Namespace) -> Iterator[str]:
    groups = groups_of(running)
    prefix = "" if namespace.name == "/" else f"{namespace.name}{TENANT_MARK}"
    for key in {*groups.groups, *groups.offsets}:
        if key.startswith(prefix) and (prefix or TENANT_MARK not in key):
            yield key[len(prefix) :]


def group_key(namespace: Namespace, name: str) -> str:
    return name if namespace.name == "/" else f"{namespace.name}{TENANT_MARK}{name}"


def group_named(key: str) -> tuple[str, str]:
    """Namespace and name of a group, from its key."""
    namespace, mark, name = key.partition(TENANT_MARK)
    return (namespace, name) if mark else ("/", key)


def group_exists(running: Running, namespace: Namespace, name: str) -> bool:
    groups, key = groups_of(running), group_key(namespace, name)
    return groups is not None and (key in groups.groups or key in groups.offsets)


def group_row(running: Running, namespace: Namespace, name: str) -> CursorRow:
    groups = groups_of(running)
    key = group_key(namespace, name)
    group = groups.groups.get(key)
    rows = offset_rows(namespace, groups, key)
    return {
        "name": name,
        "protocol": "kafka",
        "kind": f"{getattr(group, 'kind', 'classic')} group",
        "reads": ", ".join(sorted({one["topic"] for one in rows})),
        "lag": sum(one["lag"] for one in rows),
        "unacked": 0,
        "state": str(getattr(group, "state", "Empty")),
        "members": len(getattr(group, "members", ())),
    }


def group_facts(running: Running, namespace: Namespace, name: str) -> GroupFacts:
    groups = groups_of(running)
    key = group_key(namespace, name)
    if key not in groups.groups and key not in groups.offsets:
        raise NotFound(f"there is no group {name}", fix="mainstem group ls")
    members = getattr(groups.groups.get(key), "members", {})
    return {
        **group_row(running, namespace, name),
        "offsets": offset_rows(namespace, groups, key),
        "clients": [
            {
                "member": str(member),
                "client": getattr(one, "client_id", ""),
                "host": getattr(one, "client_host", ""),
                "assigned": assigned_to(one),
            }
            for member, one in dict(members).items()
        ],
    }


def assigned_to(member: Any) -> list[str]:
    """The partitions a member reads, as `topic-0`. A classic one's are in the bytes that its leader made for it."""
    held = getattr(member, "assigned", None)
    if held is not None:
        return sorted(f"{topic}-{partition}" for topic, partition in held)[:ASSIGNED_SHOWN]
    return read_assignment(getattr(member, "assignment", b""))


def read_assignment(data: bytes) -> list[str]:
    """Kafka's consumer protocol: version, then topics (int16 length, name) with their partitions (int32 each)."""
    found: list[str] = []
    try:
        topics, at = struct.unpack_from(">i", data, 2)[0], 6
        for _ in range(topics):
            size = struct.unpack_from(">h", data, at)[0]
            name, at = data[at + 2 : at + 2 + size].decode(), at + 2 + size
            count = struct.unpack_from(">i", data, at)[0]
            found += (f"{name}-{one}" for one in struct.unpack_from(f">{min(count, ASSIGNED_SHOWN)}i", data, at + 4))
            at += 4 + 4 * count
            if len(found) >= ASSIGNED_SHOWN:
                break
    except (struct.error, UnicodeDecodeError):  # another protocol than the consumers'
        return found
    return found[:ASSIGNED_SHOWN]


def offset_rows(namespace: Namespace, groups: Groups, key: str) -> list[GroupOffset]:
    """Every partition of the topics that the group reads. It is behind in all of one that it never committed."""
    offsets, group = groups.offsets.get(key, {}), groups.groups.get(key)
    subscribed = groups.subscribed(group) if group is not None and not isinstance(group, ShareGroup) else None
    committed: dict[str, dict[int, Commit]] = {topic: {} for topic in subscribed or ()}
    for (topic, partition), commit in offsets.items():
        committed.setdefault(topic, {})[partition] = commit
    rows = []
    for topic, commits in sorted(committed.items()):
        readers = _kafka_source(namespace, topic)
        for partition in sorted({*readers, *commits}):
            held, reader = commits.get(partition), readers.get(partition)
            at = None if held is None else held.offset
            row: GroupOffset = {"topic": topic, "partition": partition, "offset": at, "end_offset": None, "lag": 0}
            if reader is not None:
                start, end = max(at or 0, reader.start_offset), reader.stable_offset
                row["end_offset"], row["lag"] = end, reader.count(start, end) if start < end else 0
            rows.append(row)
    return rows


def _kafka_source(namespace: Namespace, topic: str) -> dict[int, Any]:
    """The partitions behind a Kafka name; none where it is gone."""
    canonical = topic_of_kafka(topic).decode(errors="replace")
    try:
        if canonical.encode() in namespace.views:
            return open_source(namespace, view=canonical).readers
        return open_source(namespace, topic=canonical).readers
    except MainstemError:
        return {}


def plan_reset(running: Running, namespace: Namespace, group: str, topic: str, to: str) -> list[OffsetChange]:
    """What a reset would change: one row per partition. Nothing is changed."""
    groups = groups_of(running)
    key = group_key(namespace, group)
    if key not in groups.groups and key not in groups.offsets:
        raise NotFound(f"there is no group {group}", fix="mainstem group ls")
    held = groups.offsets.get(key, {})
    return plan_offsets(namespace, [topic] if topic else sorted({name for name, _ in held}), held, to)


def plan_offsets(
    namespace: Namespace, topics: list[str], held: dict[tuple[str, int], Commit], to: str
) -> list[OffsetChange]:
    changes = list[OffsetChange]()
    for name in topics:
        readers = _kafka_source(namespace, name)
        if not readers:
            raise NotFound(f"there is no topic {name}", fix="topics are named here as Kafka spells them: a.b")
        source = open_source_of(namespace, name)
        for partition, offset in start_offsets(source, to, now_ms=0, limit=0).items():
            before = held.get((name, partition))
            reader = readers[partition]  # beyond the end a consumer would be sent elsewhere, and miss what comes next
            offset = max(reader.start_offset, min(offset, reader.stable_offset))
            changes.append(
                {"topic": name, "partition": partition, "from": before.offset if before else None, "to": offset}
            )
    return [change for change in changes if change["from"] != change["to"]]


def open_source_of(namespace: Namespace, topic: str) -> Any:
    canonical = topic_of_kafka(topic).decode(errors="replace")
    if canonical.encode() in namespace.views:
        return open_source(namespace, view=canonical)
    return open_source(namespace, topic=canonical)


def apply_reset(running: Running, namespace: Namespace, group: str, changes: list[OffsetChange]) -> Any:
    """The ticket of the new offsets. Members would overwrite them, so there must be none."""
    groups = groups_of(running)
    key = group_key(namespace, group)
    members = getattr(groups.groups.get(key), "members", ())
    if members:
        raise InvalidArgument(f"group {group} has {len(members)} member(s)", fix="stop its consumers first")
    now_ms = running.broker.clock.now_ns() // 1_000_000
    commits = {(one["topic"], one["partition"]): Commit(one["to"], commit_ms=now_ms) for one in changes}
    return groups.commit(key, commits)


# -- queues


def queue_row(queue: Queue) -> QueueRow:
    return {
        "name": queue.name,
        "kind": str(getattr(queue.settings.kind, "value", queue.settings.kind)),
        "durable": queue.settings.durable,
        "ready": queue.ready,
        "unacked": queue.unacked,
        "dead": queue.dead_count,
        "consumers": len(queue.takers) + len(queue.pullers),
        "filters": [one.decode(errors="replace") for one in queue.filters],
    }


def stream_consumer_name(consumer: Consumer) -> str:
    return f"{consumer.stream.name}/{consumer.name}"


def stream_consumer_row(consumer: Consumer) -> QueueRow:
    """A JetStream consumer is a queue cursor, too."""
    stream = consumer.stream
    return {
        "name": stream_consumer_name(consumer),
        "kind": "jetstream",
        "durable": consumer.settings.durable,
        "ready": consumer.pending + consumer.first_owed,
        "unacked": consumer.ack_pending if consumer.explicit else 0,
        "dead": len(consumer.cursor.dead),
        "consumers": 1,  # itself: whoever pulls, it holds
        "filters": [one.decode(errors="replace") for one in consumer.settings.filters or stream.settings.filters],
    }


def stream_consumers(running: Running, namespace: Namespace) -> Iterator[Consumer]:
    """Those that are a queue of their own; the others are in the row of the queue that they joined."""
    for stream in running.broker.streams.of(namespace).by_name.values():
        yield from (one for one in stream.consumers.values() if not isinstance(one, JoinedConsumer))


def dead_row(taken: Taken, reason: str, time_ms: int) -> DeadLetter:
    return {
        "position": taken.position,
        "reason": reason,
        "attempts": taken.attempts,
        "dead_ms": time_ms,
        **record_facts(0, taken.record),
    }


def stream_cursor(consumer: Consumer) -> CursorRow:
    row = stream_consumer_row(consumer)
    return {
        "name": row["name"],
        "protocol": "nats",
        "kind": "queue",
        "reads": ", ".join(row["filters"]),
        "lag": row["ready"],
        "unacked": row["unacked"],
        "state": "durable" if row["durable"] else "ephemeral",
        "held_bytes": 0,  # a stream keeps by its own limits, whoever reads it
    }


def queue_cursor(running: Running, queue: Queue) -> CursorRow:
    stamp, consumers = queue.held_stamp(), len(queue.takers) + len(queue.pullers)
    return {
        "name": queue.name,
        "protocol": "amqp",
        "kind": "queue",
        "reads": ", ".join(one.decode(errors="replace") for one in queue.filters),
        "lag": queue.ready,
        "unacked": queue.unacked,
        "state": counted(consumers, "consumer") if consumers else "idle",
        "held_bytes": running.broker.maintenance.held_bytes_from(stamp) if stamp is not None else 0,
    }


# -- MQTT sessions


def session_row(running: Running, namespace: Namespace, session: Session) -> CursorRow:
    session.refresh()
    holds = not session.hold_ended and any(one.qos for one in session.subscriptions.values())
    filters = [one.decode(errors="replace") for one in session.subscriptions]
    return {
        "name": session.client_id.decode(errors="replace"),
        "protocol": "mqtt",
        "kind": "session",
        "user": session.user or None,
        "reads": ", ".join(filters),
        "lag": 0 if session.here is not None else session_lag(namespace, session),
        "unacked": sum(state != DONE for _, state, _ in session.flight),
        "state": "connected" if session.here is not None else "away",
        "held_bytes": running.broker.maintenance.held_bytes_from(session.oldest()) if holds else 0,
    }


def session_facts(running: Running, namespace: Namespace, session: Session) -> SessionFacts:
    return {
        **session_row(running, namespace, session),
        "expiry_seconds": None if session.expiry_seconds == NEVER else session.expiry_seconds,
        "left": session.left_ns or None,
        "expires": session.expires_ns(),
        "hold_ended": session.hold_ended,
        "here": session.here is not None,
        "position": session.position,
        "subscriptions": [
            {"filter": one.filter.decode(errors="replace"), "qos": one.qos} for one in session.subscriptions.values()
        ],
        "in_flight": list(islice(_in_flight(session), IN_FLIGHT_SHOWN)),
    }


def _in_flight(session: Session) -> Iterator[InFlight]:
    for packet_id, state, stamp in session.flight:
        if state != DONE:
            yield {"packet_id": packet_id, "stamp": stamp}


def _near(log: Log, stamp: int) -> int:
    """Where a stamp lies; of what lies in the object store where its part begins: a figure for people fetches nothing."""
    try:
        return readable_offset(log, stamp)
    except NotLocal as missing:
        return missing.offset


def session_lag(namespace: Namespace, session: Session) -> int:
    """What it is owed at QoS 1 or 2: appended since its position, also what only it still holds. Each filter for itself."""
    total = 0
    for subscription in session.subscriptions.values():
        topic_filter = literal_filter(subscription.filter)
        if topic_filter.startswith(b"$") or not subscription.qos:
            continue
        for stem in namespace.stems.values():
            index = stem.index
            assert index is not None
            start = _near(stem, session.position)
            bitmap = index.topics.bitmap(topic_filter)
            total += sum(index.count(bitmap, *one) for one in index.known(start, stem.stable))
        for reader in open_source(namespace, topic_filter=topic_filter.decode(errors="replace")).readers.values():
            log = getattr(reader, "log", None)
            if log is not None and log.index is None:
                total += reader.count(_near(log, session.position), reader.stable_offset)
    return total

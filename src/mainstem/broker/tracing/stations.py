"""Where one record stands with each who may take it, read off what they keep anyway: a position is one stamp or one offset.

So the way of a record is known without having been watched, as far as it matters now: waiting, taken, acked, dead. Only when
each of it happened has to be written down (`tracer.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from mainstem.broker.queues.queue import Queue
from mainstem.broker.queues.queue_sink import QueueSink
from mainstem.broker.sessions.sessions import DONE, Session
from mainstem.model.topic import kafka_name
from mainstem.model.topic_filter import literal_filter, matches

if TYPE_CHECKING:
    from mainstem.broker.delivery.live import Sink
    from mainstem.broker.namespaces.namespace import Namespace

LOOKED_MAX = 2_000  # sessions, groups and reports that are looked at for one record
TENANT_MARK = "\x01"  # between namespace and group id


@dataclass(frozen=True, slots=True)
class Station:
    """One who may take the record, and how that stands."""

    kind: str  # queue | session | subscription | group | view | archive | pipeline | stream
    name: str
    protocol: str
    state: str
    attempts: int = 0
    detail: str = ""


def listeners(namespace: Namespace, topic: bytes) -> list[Sink]:
    """Who is handed the topic's records as they are written, each once."""
    return list(dict.fromkeys(namespace.listening(topic)))


def describe(sink: Any) -> tuple[str, str, str]:
    """Kind, name and protocol of a live listener, in whatever way its protocol keeps them."""
    if isinstance(sink, QueueSink):
        return "queue", str(sink.owner.name), ""
    module = type(sink).__module__.split(".")
    protocol = module[2] if len(module) > 2 and module[1] == "protocols" else ""
    connection = getattr(sink, "connection", None) or getattr(getattr(sink, "channel", None), "connection", None)
    for holder in (sink, connection):
        for name in ("client_id", "client_name", "name"):
            value = getattr(holder, name, None)
            if value:
                return (
                    "subscription",
                    value.decode(errors="replace") if isinstance(value, bytes) else str(value),
                    protocol,
                )
    return "subscription", type(sink).__name__.lower(), protocol or "http"


def queue_state(queue: Queue, stamp: int) -> tuple[str, int, str]:
    """State, failed attempts and, of a dead letter, why."""
    for level in queue.levels:
        cursor = level.cursor
        attempts = cursor.attempts(stamp)
        if stamp in cursor.dead:
            dead = cursor.dead[stamp]
            return "dead", dead.attempts, dead.reason
        if cursor.is_leased(stamp):
            return "taken", attempts, ""
        if cursor.holds(stamp):
            return "released", attempts, ""
        if stamp >= cursor.next:
            return "waiting", attempts, ""
    return "acked", 0, ""


def queues_of_record(namespace: Namespace, topic: bytes, stamp: int) -> Iterator[Queue]:
    """Queues that the topic enters, and that existed when the record came."""
    for sink in listeners(namespace, topic):
        if isinstance(sink, QueueSink) and sink.owner.entry_of(topic, stamp) is not None:
            yield sink.owner


def session_state(session: Session, stamp: int) -> str:
    session.refresh()
    if any(one == stamp and state != DONE for _, state, one in session.flight):
        return "taken"
    return "waiting" if stamp >= session.position else "acked"


def sessions_of_record(namespace: Namespace, topic: bytes, stamp: int) -> Iterator[Session]:
    prefix = namespace.name.encode() + b"\0"
    for session in islice(namespace.broker.session_keeper.sessions, LOOKED_MAX):
        if session.key.startswith(prefix) and any(
            matches(literal_filter(one.filter), topic) and one.start <= stamp for one in session.subscriptions.values()
        ):
            yield session


def groups_of_record(namespace: Namespace, topic: bytes, partition: int, offset: int) -> Iterator[Station]:
    """Consumer groups that committed an offset of the topic, or of a view that shows it."""
    names = {kafka_name(topic)}
    prefix = "" if namespace.name == "/" else f"{namespace.name}{TENANT_MARK}"
    for key, offsets in islice(namespace.broker.coordinator.groups.offsets.items(), LOOKED_MAX):
        if not key.startswith(prefix) or (not prefix and TENANT_MARK in key):
            continue
        for name in names:
            commit = offsets.get((name, partition))
            if commit is not None:
                state = "committed" if commit.offset > offset else "waiting"
                yield Station("group", key[len(prefix) :], "kafka", state, detail=f"committed {commit.offset}")


def stations(namespace: Namespace, topic: bytes, stamp: int, partition: int, offset: int, log: int) -> list[Station]:
    """Everybody whom the record concerns."""
    found: list[Station] = []
    for queue in queues_of_record(namespace, topic, stamp):
        state, attempts, why = queue_state(queue, stamp)
        found.append(Station("queue", queue.name, "", state, attempts, why))
    for session in sessions_of_record(namespace, topic, stamp):
        name = session.client_id.decode(errors="replace")
        found.append(Station("session", name, "mqtt", session_state(session, stamp)))
    found += groups_of_record(namespace, topic, partition, offset)
    found += _shown(namespace, topic, offset, log)
    return found


def _shown(namespace: Namespace, topic: bytes, offset: int, log: int) -> Iterator[Station]:
    """Views, archives and pipelines."""
    for view in islice(namespace.views.values(), LOOKED_MAX):
        if view.covers(topic):
            yield Station("view", view.name.decode(errors="replace"), "", "shown", detail=f"offset {offset}")
    broker = namespace.broker
    for name, reached in islice(broker.archives.reached_of(namespace.name, log), LOOKED_MAX):
        if not reached.filter or matches(reached.filter, topic):
            yield Station("archive", name, "spark", "archived" if reached.offset > offset else "waiting")
    for pipeline in broker.pipelines.listed(namespace.name):
        for flow in pipeline["flows"]:
            filters = [one for one in flow["reads"].split("\n") if one]
            if any(_means(one, topic) for one in filters):
                detail = f"flow {flow['flow']}, {flow['lag']} records behind"
                yield Station("pipeline", pipeline["name"], "spark", flow["state"], detail=detail)


def _means(topic_filter: str, topic: bytes) -> bool:
    return matches(topic_filter.encode(), topic)

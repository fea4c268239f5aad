"""`$stream/<filter>`: history for MQTT clients, then what comes, each delivery with its offset and append time.

A view's own name (`$stream/<view>`) reads the view: its filter, only what its condition lets through, and of a table the
newest record of each key.

Whatever carries offsets away ends at what is stable: a stream is always read from the log, woken when the log's stable
end moves. It has its own position. A persistent session keeps it (the oldest delivery not acknowledged, or the end).

    stream-offset := earliest | latest | <offset> | ts:<RFC 3339 or epoch ms> | stamp:<µs>
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainstem.broker.delivery.live import RecordRef, Sink
from mainstem.broker.rights.access import Action
from mainstem.broker.sessions.sessions import Subscription
from mainstem.log.log import Log
from mainstem.model.origin import Origin, RecordFlag
from mainstem.protocols.mqtt.outgoing.outbound import Grant
from mainstem.protocols.mqtt.session import grant_of
from mainstem.protocols.mqtt.subscribing.filters import Asked
from mainstem.protocols.mqtt.subscribing.starting_points import starting_stamp

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection

OFFSET = b"stream-offset"


class Stream(Sink):
    """Never live: the pump brings everything, up to what is stable."""

    def __init__(
        self, connection: MqttConnection, asked: Asked, subscription: Subscription, properties: dict[bytes, bytes]
    ) -> None:
        assert connection.namespace is not None
        super().__init__(connection.namespace)
        self._connection = connection
        view = connection.namespace.views.get(asked.filter)
        self._view = view
        self._filter = asked.filter if view is None else view.filter
        connection.namespace.check_stored(self._filter)
        self._subscription = subscription
        if not subscription.start:
            offset = properties.get(OFFSET, b"").decode(errors="replace") or asked.offset or "earliest"
            subscription.start = starting_stamp(connection.namespace, self._filter, offset)
        self.live = False
        self.position = subscription.start
        grant = grant_of(subscription)
        self._grant = _described(grant, grant.qos)
        self._unsettled: dict[int, None] = {}  # stamps delivered and not acknowledged, in order
        self._bell = Bell(connection.namespace, self.on_news)
        self._logs: set[Log] = set()
        connection.namespace.subscribe(self._filter, self._bell, None)
        self._read_on()

    # -- what the pump asks

    def choose(self, record: RecordRef) -> Grant:
        return self._grant

    def push(self, record: RecordRef, options: Any) -> bool:
        log = record.log
        if log is not None and record.offset >= log.stable:
            self._listen(log)
            return False
        connection = self._connection
        if not self._shows(record):
            return True
        kept = 1 if record.origin == Origin.KAFKA else record.flags & 3
        if not connection.outbound.room:
            return False
        retain = bool(
            self._grant.retain_as_published and record.flags & RecordFlag.RETAIN and record.origin != Origin.KAFKA
        )
        if min(kept, self._grant.qos) == 0:
            return bool(connection.outbound.offer(record, self._grant, retain))
        grant = self._grant if kept >= self._grant.qos else _described(self._grant, kept)
        before = connection.outbound.inflight
        taken = bool(connection.outbound.offer(record, grant, retain, Delivered(self, record.stamp)))
        if taken and connection.outbound.inflight > before:
            self._unsettled[record.stamp] = None
        return taken

    def _shows(self, record: RecordRef) -> bool:
        """A view decides by its condition or its table: who may read it may read what it shows, save what a rule denies."""
        connection = self._connection
        if self._view is None:
            allows = connection.outbound.allows
            return allows is None or allows(record.topic)
        assert connection.principal is not None
        access = connection.service.broker.access
        if not self._view.grants and access.denies(connection.principal, Action.CONSUME, record.topic):
            return False
        return self._view.shows(record)

    # -- going on

    def on_news(self, log: Log | None) -> None:
        """Something matching was written; it is ours once it is stable."""
        if log is not None:
            self._listen(log)
            if log.stable >= log.written:
                self._read_on()

    def _listen(self, log: Log) -> None:
        if log not in self._logs:
            self._logs.add(log)
            log.stable_listeners.append(self._on_stable)

    def _on_stable(self, log: Log) -> None:
        self._read_on()

    def _read_on(self) -> None:
        if not self._connection.closing and self._connection.outbound.room:
            self.live = False
            service = self._connection.service
            service.encoder.now_ns = service.broker.clock.now_ns()  # what has expired by now is not told
            service.broker.pump.resume(self, [self._filter])

    def room(self) -> None:
        self._read_on()

    def settled(self, stamp: int) -> None:
        self._unsettled.pop(stamp, None)

    def close(self, *, ended: bool) -> None:
        broker = self._connection.service.broker
        broker.pump.stop(self)
        self._subscription.start = min(next(iter(self._unsettled), self.position), self.position)
        self.namespace.unsubscribe(self._filter, self._bell)
        for log in self._logs:
            log.stable_listeners.remove(self._on_stable)
        self._logs.clear()


def _described(grant: Grant, qos: int) -> Grant:
    return Grant(qos, retain_as_published=grant.retain_as_published, identifiers=grant.identifiers, meta=True)


class Bell(Sink):
    """Tells a stream that something was written, without taking it."""

    def __init__(self, namespace: Any, ring: Callable[[Log | None], None]) -> None:
        super().__init__(namespace)
        self._ring = ring

    def push(self, record: RecordRef, options: Any) -> bool:
        self._ring(record.log)
        return True

    def merge(self, options: list[Any]) -> Any:
        return options[0]


class Delivered:
    """One delivery of a stream that waits for its PUBACK; any answer ends it: a stream is read, not worked off."""

    __slots__ = ("_stamp", "_stream")

    def __init__(self, stream: Stream, stamp: int) -> None:
        self._stream = stream
        self._stamp = stamp

    def settle(self, reason: int) -> None:
        self._stream.settled(self._stamp)

    def give_back(self) -> None:
        """The client is gone; its session goes on from here."""

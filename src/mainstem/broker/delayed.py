"""Messages for later: stored at once, appended to their topic when due. One timer index for all protocols.

A delayed message is a record of the hidden topic `$delayed`, with a header that says what becomes of it:

    ms-delayed = u64 due ms, u8 origin, u8 flags, u16 topic length, topic, then the key (absent: the topic)

The index is derived from those records: kept in memory as (due, where it lies), journaled so that a start need not read
them again:

    journal kind "delayed": key = u64 stamp; value = u64 due ms, u64 log id, u64 offset (null: appended)
                            key = u64 0, namespace; value = u64 stamp up to which its records were indexed, u64 0, u64 0

An entry goes once what it became is durable. One not yet appended holds its record against retention. Time to live and
order count from the append, when it is due.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from mainstem.broker.delivery.live import RecordRef, Sink
from mainstem.broker.state.shards import Shards
from mainstem.codec.batch import decode_frames
from mainstem.log.away import bring
from mainstem.log.gather import Ticket
from mainstem.log.inflating import inflate_soon
from mainstem.log.log import Log
from mainstem.log.retention import NO_STAMP, Holds
from mainstem.model.errors import MainstemError, Overloaded
from mainstem.model.origin import Origin
from mainstem.model.record import Header, Record
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace

logger = logging.getLogger("mainstem.broker")

TOPIC = b"$delayed"
HEADER = b"ms-delayed"
JOURNAL_KIND = "delayed"
DELAYED_MAX = 1_000_000
DUE_PER_TURN = 1_000
RETRY_MS = 1_000
INFLATED_BYTES_MAX = 64 << 20
NS_PER_MS = 1_000_000
_HEAD = struct.Struct(">QBBH")
_ENTRY = struct.Struct(">QQQ")


class Delayed:
    """All namespaces' delayed messages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._entries = Shards[int, tuple[int, int, int]]()  # stamp → due ms, log id, offset
        self._heap: list[tuple[int, int]] = []  # due ms, stamp
        self._sinks: dict[str, _Arrivals] = {}
        self._indexed: dict[str, int] = {}  # namespace → the stamp of its newest delayed record that was indexed
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0
        broker.journal.register(JOURNAL_KIND, self._apply, self._dump)
        broker.maintenance.holders["delayed"] = self.holds

    def __len__(self) -> int:
        return len(self._entries)

    # -- adding

    def add(
        self,
        namespace: Namespace,
        topic: bytes,
        value: bytes | None,
        *,
        due_ms: int,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        time_ms: int | None = None,
        flags: int = 0,
        origin: int = Origin.BROKER,
    ) -> Ticket:
        """Append to `topic` when it is `due_ms`; the ticket is released when the promise is durable."""
        if len(self._entries) >= DELAYED_MAX:
            raise Overloaded(f"{DELAYED_MAX} messages are delayed already", fix="wait until some of them are due")
        self._listen(namespace)
        plan = _HEAD.pack(due_ms, origin, flags, len(topic)) + topic + (b"" if key is None else b"\1" + key)
        return namespace.publish(TOPIC, value, headers=[(HEADER, plan), *headers], time_ms=time_ms)

    def add_publish(
        self,
        namespace: Namespace,
        exchange: str,
        key: str,
        properties: bytes,
        value: bytes,
        time_ms: int,
        due_ms: int,
    ) -> Ticket:
        """An AMQP publish: routed when it is due, to what its CC and BCC name, too."""
        headers: list[Header] = [
            (b"ms-exchange", exchange.encode("utf-8", "surrogateescape")),
            (b"ms-routing-key", key.encode("utf-8", "surrogateescape")),
            (b"ms-amqp", properties),
        ]
        return self.add(namespace, b"", value, due_ms=due_ms, headers=headers, time_ms=time_ms, origin=Origin.AMQP)

    def _listen(self, namespace: Namespace) -> _Arrivals:
        found = self._sinks.get(namespace.name)
        if found is None or found.namespace is not namespace:
            found = self._sinks[namespace.name] = _Arrivals(self, namespace)
            namespace.subscribe(TOPIC, found, None)
        return found

    def arrived(self, namespace: Namespace, record: RecordRef) -> None:
        """A delayed record was written: now it has a place, and the index knows it."""
        plan = record.header(HEADER)
        if plan is None or len(plan) < _HEAD.size or record.stamp in self._entries or record.log is None:
            return
        due_ms = _HEAD.unpack_from(plan)[0]
        self._note_indexed(namespace.name, record.stamp)
        self._put(record.stamp, (due_ms, record.log.id, record.offset))
        self._broker.journal.put(JOURNAL_KIND, _key(record.stamp), _ENTRY.pack(*self._entries[record.stamp]))
        self._arm()

    def forget_namespace(self, name: str) -> Iterator[None]:
        """It is removed: what its stems had waiting is never due."""
        sink = self._sinks.pop(name, None)
        logs = {log.id for log in sink.namespace.stems.values()} if sink is not None and sink.namespace else set()
        for stamp in [stamp for stamp, entry in self._entries.items() if entry[1] in logs]:
            self._end(stamp)
            yield

    def _note_indexed(self, namespace: str, stamp: int) -> None:
        self._indexed[namespace] = max(self._indexed.get(namespace, 0), stamp)

    def _put(self, stamp: int, entry: tuple[int, int, int]) -> None:
        self._entries[stamp] = entry
        heappush(self._heap, (entry[0], stamp))

    # -- recovery

    def start(self) -> None:
        """After the journal: index what was written since, then wait for what is due."""
        heapify(self._heap)
        for namespace in self._broker.namespaces.values():
            if any(stem.remembers(TOPIC) for stem in namespace.stems.values()):
                sink = self._listen(namespace)
                sink.live, sink.position = False, self._indexed.get(namespace.name, 0) + 1
                self._broker.pump.resume(sink, [TOPIC])
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _apply(self, key: bytes, value: bytes | None) -> None:
        stamp = int.from_bytes(key[:8], "big")
        if value is None:
            self._entries.pop(stamp, None)
        elif not stamp:
            self._note_indexed(key[8:].decode(), _ENTRY.unpack(value)[0])
        else:
            self._put(stamp, _ENTRY.unpack(value))
            namespace = self._namespace_of(self._entries[stamp][1])
            if namespace is not None:
                self._note_indexed(namespace.name, stamp)

    def _dump(self) -> Iterator[tuple[bytes, bytes]]:
        for name, indexed in list(self._indexed.items()):
            yield _key(0) + name.encode(), _ENTRY.pack(indexed, 0, 0)
        for stamp in self._entries.keys_in_slices():
            entry = self._entries.get(stamp)
            if entry is not None:
                yield _key(stamp), _ENTRY.pack(*entry)

    def holds(self, log: Log) -> Holds:
        stamps = [stamp for stamp, entry in self._entries.items() if entry[1] == log.id]
        return Holds(min(stamps, default=NO_STAMP), [], NO_STAMP)

    # -- time

    def _arm(self) -> None:
        if not self._heap or (self._timer is not None and self._timer_due <= self._heap[0][0]):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = self._heap[0][0]
        wait_ms = max(0, self._timer_due - self._now_ms())
        # A wall clock may be set: look again at least once a minute.
        self._timer = asyncio.get_running_loop().call_later(min(wait_ms / 1000, 60.0), self._on_time)

    def _now_ms(self) -> int:
        return self._broker.clock.now_ns() // NS_PER_MS

    def _on_time(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        for _ in range(DUE_PER_TURN):
            if not self._heap or self._heap[0][0] > now_ms:
                break
            _, stamp = heappop(self._heap)
            entry = self._entries.get(stamp)
            if entry is not None:
                self._append(stamp, entry)
        self._arm()

    def _append(self, stamp: int, entry: tuple[int, int, int]) -> None:
        _, log_id, offset = entry
        try:
            found = self._read(log_id, offset)
        except NotLocal as missing:
            bring(missing, lambda: self._append(stamp, entry) if stamp in self._entries else None)
            return
        ticket: Ticket | None = None
        if found is None:
            logger.warning("a delayed message at offset %d of log %d is no longer stored", offset, log_id)
        else:
            try:
                ticket = self._publish(*found)
            except MainstemError as error:
                logger.warning("a delayed message could not be published: %s", error)
        if ticket is None:
            self._end(stamp)
        else:
            ticket.wait(_Appending(self, stamp))

    def _end(self, stamp: int) -> None:
        if self._entries.pop(stamp, None) is not None:
            self._broker.journal.put(JOURNAL_KIND, _key(stamp), None)

    def appended(self, stamp: int, error: Exception | None) -> None:
        """What it became is durable, or was refused because the disk is full."""
        if error is None:
            self._end(stamp)
        elif stamp in self._entries:
            logger.warning("a delayed message could not be published, it is tried again: %s", error)
            heappush(self._heap, (self._now_ms() + RETRY_MS, stamp))
            self._arm()

    def _namespace_of(self, log_id: int) -> Namespace | None:
        log = self._broker.logs.by_id.get(log_id)
        if log is None:
            return None
        return next((n for n in self._broker.namespaces.values() if log in n.stems.values() or n.name == "/"), None)

    def _read(self, log_id: int, offset: int) -> tuple[Namespace, Record] | None:
        log = self._broker.logs.by_id.get(log_id)
        piece = log.read_now(offset, 1) if log is not None else None
        if log is None or piece is None:
            return None
        namespace = self._namespace_of(log_id)
        assert namespace is not None
        records = decode_frames(
            piece.data,
            log.id,
            start_offset=offset,
            end_offset=offset + 1,
            inflated_bytes_max=INFLATED_BYTES_MAX,
            inflate=inflate_soon,
            topic_of=namespace.topic_of,
        )
        return (namespace, records[0]) if records else None

    def _publish(self, namespace: Namespace, record: Record) -> Ticket | None:
        plan = record.header(HEADER) or b""
        _, origin, flags, topic_size = _HEAD.unpack_from(plan)
        topic = plan[_HEAD.size : _HEAD.size + topic_size]
        rest = plan[_HEAD.size + topic_size :]
        if origin == Origin.AMQP and not topic:
            return self._publish_amqp(namespace, record)
        headers = [pair for pair in record.headers if pair[0] != HEADER]
        key = rest[1:] if rest else None
        return namespace.publish(
            topic, record.value, key=key, headers=headers, time_ms=record.time_ms, flags=flags, origin=origin
        )

    def _publish_amqp(self, namespace: Namespace, record: Record) -> Ticket | None:
        exchange = _text(record.header(b"ms-exchange"))
        exchanges = self._broker.queues.of(namespace).exchanges
        if exchanges.find(exchange) is None:
            logger.warning("exchange %r is gone; a message delayed for it is dropped", exchange)
            return None
        return exchanges.publish(
            exchange,
            _text(record.header(b"ms-routing-key")),
            record.header(b"ms-amqp") or b"",
            record.value,
            record.time_ms,
        )


def _key(stamp: int) -> bytes:
    return stamp.to_bytes(8, "big")


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "surrogateescape")


class _Arrivals(Sink):
    """Sees every delayed record of a namespace as it is written."""

    def __init__(self, delayed: Delayed, namespace: Namespace) -> None:
        super().__init__(namespace)
        self._delayed = delayed

    def choose(self, record: RecordRef) -> Any:
        return record.topic == TOPIC or None

    def push(self, record: RecordRef, options: Any) -> bool:
        assert self.namespace is not None
        self._delayed.arrived(self.namespace, record)
        return True


class _Appending:
    """Waits until what became due is durable."""

    __slots__ = ("_delayed", "_stamp")

    def __init__(self, delayed: Delayed, stamp: int) -> None:
        self._delayed, self._stamp = delayed, stamp

    def released(self, ticket: Ticket) -> None:
        self._delayed.appended(self._stamp, ticket.error)

"""Live delivery in plain Python. See `live.py`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mainstem.codec.batch import KIND_DATA, FrameHead, decode_batch, verify_frame
from mainstem.log._gather_reference import TopicRef
from mainstem.log.committed import committed_batches
from mainstem.model.errors import CorruptFrame, MainstemError
from mainstem.model.origin import Origin, RecordFlag
from mainstem.model.record import Header, Record

if TYPE_CHECKING:
    from mainstem.broker.namespace import Namespace
    from mainstem.log.log import Appended, Log
    from mainstem.storage.engine import Buffer

logger = logging.getLogger("mainstem.broker")

INFLATED_BYTES_MAX = 64 << 20
ATTRIBUTES_AT = 22  # the low byte, in a RecordBatch
TRANSACTIONAL, CONTROL = 0x10, 0x20


class RecordRef:
    def __init__(self) -> None:
        self.topic = b""
        self.key: bytes | None = None
        self.value: bytes | None = None
        self.headers: list[Header] = []
        self.flags = self.origin = 0
        self.offset = self.stamp = -1
        self.time_ms = 0
        self.serial = 0
        self.log: Log | None = None

    def show(self, record: Record, stamp: int) -> None:
        self.key, self.value, self.headers = record.key, record.value, record.headers
        self.flags = 0 if self.origin == Origin.KAFKA else record.flags & 0xFF
        self.offset, self.time_ms = record.offset, record.time_ms
        self.stamp = stamp
        self.serial += 1

    def set_topic(self) -> None:
        self.topic = b""
        if self.origin != Origin.KAFKA:
            named = self.key if self.flags & RecordFlag.KEY_IS_TOPIC else self.header(b"ms-topic")
            self.topic = named or b""

    @property
    def value_size(self) -> int:
        return len(self.value or b"")

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    def copy(self) -> Record:
        return Record(
            self.value,
            self.key,
            self.headers,
            self.time_ms,
            self.flags,
            self.offset,
            self.stamp,
            Origin(self.origin),
            self.topic,
        )


class Sink:
    def __init__(self, namespace: Namespace, position: int = 0) -> None:
        self.namespace = namespace
        self.live = True
        self.position = position

    def push(self, record: RecordRef, options: Any) -> bool:
        """Take a record; False when there is no room for it."""
        raise NotImplementedError

    def choose(self, record: RecordRef) -> Any:
        """While catching up: the options under which a stored record is wanted, None if it is not."""
        raise NotImplementedError

    def merge(self, options: list[Any]) -> Any:
        """Several of the sink's own filters match one topic: their options as one."""
        raise NotImplementedError

    def filters(self) -> Sequence[bytes]:
        """What to read while catching up."""
        raise NotImplementedError


class Delivery:
    def __init__(self, sink: Sink, options: Any) -> None:
        self.sink = sink
        self.options = options


class Route(TopicRef):
    def __init__(self, topic: bytes, number: int, log: Log, namespace: Namespace) -> None:
        super().__init__(topic, number, log)
        self.namespace = namespace
        self.deliveries: list[Delivery] = []
        self.epoch = 0

    def move(self, log: Log, number: int) -> None:
        """The topic's layout or engine changed: what is published from now on goes there."""
        self.log = log
        self.gathers = log.gathers
        self.number = number

    def renumber(self) -> None:
        self.namespace.renumber(self)


class Dispatcher:
    """Walks what was written, in stamp order, and pushes it to those who stand at the head."""

    def __init__(self) -> None:
        self.epoch = 1
        self.delivered = 0
        self.undecodable = 0  # batches of clients that could not be read, each time one was to be
        self.failures = 0  # sinks that broke while they were given a record
        self._ref = RecordRef()

    def deliver(self, appended: list[Appended]) -> None:
        self._ref.stamp = -1
        for item in appended:
            if item.kind != KIND_DATA:
                continue
            if item.gather is not None:
                routes = item.gather.routes
                if any(isinstance(route, Route) and self._fresh(route).deliveries for route in routes):
                    batch = memoryview(bytes(item.data[0]))[48:]
                    self._walk(batch, routes, item.log, item.origin, item.ref.stamp)
            elif isinstance(item.route, Route) and self._fresh(item.route).deliveries:
                try:
                    self._deliver_batch(item, item.route)
                except MainstemError:
                    self._fall_back(item, item.route)

    def _deliver_batch(self, item: Appended, route: Route) -> None:
        batch = memoryview(item.data[1])
        kind = batch[ATTRIBUTES_AT]
        if kind & CONTROL:
            ref = item.ref
            for inner, _, stamp in committed_batches(item.log, bytes(batch), ref.base_offset, ref.stamp):
                count = int.from_bytes(inner[57:61], "big")
                self._walk(memoryview(inner), [route] * count, item.log, item.origin, stamp)
        elif not kind & TRANSACTIONAL:
            self._walk(batch, [route] * item.ref.count, item.log, item.origin, item.ref.stamp)

    def _fall_back(self, item: Appended, route: Route) -> None:
        """What could not be read just now is read again by catching up: nobody loses it."""
        logger.exception("offset %d of log %d cannot be delivered live", item.ref.base_offset, item.log.id)
        for delivery in route.deliveries:
            sink = delivery.sink
            if sink.live:
                sink.live, sink.position = False, max(item.ref.stamp, self._ref.stamp + 1)
                sink.namespace.resume(sink)

    def _fresh(self, route: Route) -> Route:
        if route.epoch != self.epoch:
            route.namespace.refresh(route)
        return route

    def _walk(self, batch: Buffer, routes: Sequence[TopicRef | None], log: Log, origin: int, stamp: int) -> None:
        ref = self._ref
        ref.log, ref.origin = log, origin
        base = int.from_bytes(batch[:8], "big")
        for record, route in zip(self._records(batch, base), routes, strict=False):
            assert isinstance(route, Route)
            if not self._fresh(route).deliveries:
                continue
            ref.show(record, stamp + record.offset - base)
            ref.topic = route.topic
            for delivery in route.deliveries:
                if delivery.sink.live:
                    self._push(delivery.sink, delivery.options)

    def _records(self, batch: Buffer, base: int) -> list[Record]:
        """None of them for a client's batch that cannot be read: it is counted, and stays in the log for those who can."""
        try:
            return decode_batch(batch, inflated_bytes_max=INFLATED_BYTES_MAX)
        except MainstemError as error:
            if self._ref.origin != Origin.KAFKA:
                raise
            self.undecodable += 1
            if self.undecodable & (self.undecodable - 1) == 0:  # said less and less often
                logger.warning(
                    "the batch at offset %d of log %d cannot be read (%s) and is skipped; %d so far",
                    base,
                    self._ref.log.id if self._ref.log is not None else 0,
                    error,
                    self.undecodable,
                )
            return []

    def _push(self, sink: Sink, options: Any) -> None:
        ref = self._ref
        try:
            taken = sink.push(ref, options)
        except Exception:  # a sink that breaks breaks alone: it stays where it was, the others get their records
            self.failures += 1
            sink.live, sink.position = False, ref.stamp
            logger.exception(
                "a subscriber could not take offset %d of log %d", ref.offset, ref.log.id if ref.log is not None else 0
            )
            return
        if taken:
            self.delivered += 1
        elif sink.live:
            sink.live, sink.position = False, ref.stamp

    def replay(
        self,
        sink: Sink,
        log: Log,
        data: memoryview,
        offsets: Sequence[int],
        from_stamp: int,
        to_stamp: int,
        topic_of: dict[int, bytes],
        topic: bytes = b"",
    ) -> bool:
        """Offer stored frames to a sink that catches up, in order. `offsets` (sorted) chooses records; empty = all.
        `topic` names it where all of the log is of one.

        Returns True when all of [from_stamp, to_stamp) in `data` was offered; False when the sink had no room, its
        `position` then being the record it could not take. CorruptFrame where the stored bytes are damaged.
        """
        ref, wanted, at = self._ref, set(offsets), 0
        ref.log = log
        while at < len(data):
            head = _checked(data, at, log)
            batch = data[at + 48 : at + head.size]
            at += head.size
            if head.kind != KIND_DATA:
                continue
            ref.origin = head.origin
            for inner, base, base_stamp in visible_batches(log, batch, head.base_offset, head.stamp, from_stamp):
                for record in self._records(inner, base):
                    stamp = base_stamp + record.offset - base
                    if not from_stamp <= stamp < to_stamp or (wanted and record.offset not in wanted):
                        continue
                    ref.show(record, stamp)
                    if topic:
                        ref.topic = topic
                    elif head.topic_id:
                        ref.topic = topic_of.get(head.topic_id, b"")
                    else:
                        ref.set_topic()
                    if not self._offer(sink, stamp):
                        return False
        return True

    def _offer(self, sink: Sink, stamp: int) -> bool:
        options = sink.choose(self._ref)
        if options is None:
            return True
        if not sink.push(self._ref, options):
            sink.position = stamp
            return False
        self.delivered += 1
        sink.position = stamp + 1
        return True


def _checked(data: memoryview, at: int, log: Log) -> FrameHead:
    try:
        return verify_frame(data, at, log.id)
    except CorruptFrame as error:
        where = f"log {log.id}, offset {int.from_bytes(data[at + 16 : at + 24], 'big')}"
        raise CorruptFrame(f"{where}: {error}", fix=f"mainstem log verify {log.id}") from None


def visible_batches(
    log: Log, batch: memoryview, base: int, stamp: int, from_stamp: int
) -> Iterable[tuple[Buffer, int, int]]:
    """What a frame's batch shows to readers by stamp: itself, or what it commits, or nothing yet."""
    kind = batch[ATTRIBUTES_AT]
    if kind & CONTROL:
        return committed_batches(log, bytes(batch), base, stamp, from_stamp)
    return () if kind & TRANSACTIONAL else ((batch, base, stamp),)

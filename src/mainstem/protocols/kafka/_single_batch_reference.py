"""Produce requests of one batch, in plain Python. `_single_batch.pyx` is the same, compiled; `wire.py` draws requests.

body     transactional id (must be null) · i16 acks · i32 timeout · 1 topic: name or, from version 13 on, id
         · 1 partition: i32 index · records · [tags]
answer   1 topic · 1 partition: i32 index · i16 error · i64 base offset · i64 append time · i64 log start (v5)
         · no record errors, no message (v8) · i32 throttle time
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from mainstem.broker.access import Action
from mainstem.broker.producers import Verdict
from mainstem.codec.batch import check_batch
from mainstem.model.errors import MainstemError
from mainstem.model.origin import Origin
from mainstem.protocols.kafka.errors import code_of

if TYPE_CHECKING:
    from mainstem.broker.access import Principal
    from mainstem.broker.topics import Partition
    from mainstem.log.gather import Ticket

PRODUCE = 0
VERSION_MIN, VERSION_MAX = 3, 13
FLEXIBLE_VERSION_MIN, IDS_VERSION_MIN = 9, 13
PLACES_MAX = 10_000
WRITE_NOW_BYTES_MIN = 1 << 18  # while it lies in the processor's cache: the write reads it from there
_HEAD = struct.Struct(">hhih")
_ACKS = struct.Struct(">hi")
_INDEX = struct.Struct(">i")


class SingleBatch:
    """One request: what it says, the place of its answer, and who waits for its batch."""

    __slots__ = (
        "_connection",
        "_head",
        "_state",
        "base_offset",
        "correlation",
        "done",
        "end",
        "index",
        "name",
        "parts",
        "start",
        "start_offset",
        "version",
    )

    def __init__(self) -> None:
        self.version = self.correlation = self.index = self.start = self.end = 0
        self.name = b""  # of the topic, or its id
        self.done = False
        self.parts: list[Any] | None = None
        self.base_offset = self.start_offset = -1
        self._connection: Any = None
        self._state: Any = None
        self._head: Any = None

    def key(self) -> tuple[bytes, int]:
        """The partition; ids are told from names by the sign."""
        return self.name, ~self.index if self.version >= IDS_VERSION_MIN else self.index

    def wait(self, ticket: Ticket, connection: Any, state: Any, head: Any) -> None:
        """Answer once the ticket is released; `state` forgets `head` if it fails."""
        self.base_offset = ticket.base_offset
        self._connection, self._state, self._head = connection, state, head
        ticket.wait(self)

    def released(self, ticket: Ticket) -> None:
        error = 0
        if ticket.error is not None:
            self._state.undo(self._head, self.base_offset)
            error, self.base_offset = code_of(ticket.error), -1
        self.parts = [self.answer(error)]
        self.done = True
        self._connection.answered()

    def answer(self, error: int) -> bytes:
        """The whole response with its size."""
        flexible = self.version >= FLEXIBLE_VERSION_MIN
        one = b"\2" if flexible else b"\0\0\0\1"
        body = struct.pack(">ihqq", self.index, error, self.base_offset, -1)
        if self.version >= 5:
            body += struct.pack(">q", self.start_offset)
        if flexible:
            name = self.name if self.version >= IDS_VERSION_MIN else _varint(len(self.name) + 1) + self.name
            body = b"\0" + one + name + one + body + b"\1\0\0\0" + bytes(4) + b"\0"
        else:
            body = one + struct.pack(">h", len(self.name)) + self.name + one + body
            body += (b"\0\0\0\0\xff\xff" if self.version >= 8 else b"") + bytes(4)
        return struct.pack(">ii", len(body) + 4, self.correlation) + body


def _varint(value: int) -> bytes:
    return bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7))  # names are short


class _Unlike(Exception):
    """Not of the shape."""


class _Reader:
    """Reads on in a request; raises where it ends too early."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.at:
            raise _Unlike
        self.at += size
        return bytes(self.data[self.at - size : self.at])

    def unpack(self, form: struct.Struct) -> Any:
        return form.unpack(self.take(form.size))

    def expect(self, what: bytes) -> None:
        if self.take(len(what)) != what:
            raise _Unlike

    def size(self, *, flexible: bool, wide: bool = False) -> int:
        """Of a string (or, `wide`, of bytes) that is not null."""
        if not flexible:
            return int.from_bytes(self.take(4 if wide else 2), "big", signed=True)
        value = shift = 0
        for _ in range(5):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value - 1
            shift += 7
        raise _Unlike


def read_single(data: memoryview) -> SingleBatch | None:
    """The request, if it is Produce with acks, of one batch to one partition, outside of transactions."""
    try:
        return _read_single(_Reader(data))
    except _Unlike:
        return None


def _read_single(reader: _Reader) -> SingleBatch:
    found = SingleBatch()
    key, found.version, found.correlation, client_size = reader.unpack(_HEAD)
    flexible = found.version >= FLEXIBLE_VERSION_MIN
    one, no_tags = b"\2" if flexible else b"\0\0\0\1", b"\0" if flexible else b""
    if key != PRODUCE or not VERSION_MIN <= found.version <= VERSION_MAX:
        raise _Unlike
    reader.take(max(client_size, 0))
    reader.expect(no_tags)
    reader.expect(b"\0" if flexible else b"\xff\xff")  # no transactional id
    acks, _ = reader.unpack(_ACKS)
    if acks not in (-1, 1):
        raise _Unlike
    reader.expect(one)
    size = 16 if found.version >= IDS_VERSION_MIN else reader.size(flexible=flexible)
    if size > 249:
        raise _Unlike
    found.name = reader.take(size)
    reader.expect(one)
    (found.index,) = reader.unpack(_INDEX)
    size = reader.size(flexible=flexible, wide=True)
    found.start, found.end = reader.at, reader.at + size
    if size <= 0 or found.end > len(reader.data):
        raise _Unlike
    reader.at = found.end
    reader.expect(no_tags * 3)
    return found


class _Place:
    """A partition that takes batches as they are, as long as its topic stays what it is."""

    __slots__ = (
        "after_ms_max",
        "bytes_max",
        "config",
        "log",
        "partition",
        "policy",
        "route",
        "state",
        "time_ms_max",
        "topic",
        "topics",
    )

    def __init__(
        self, partition: Partition, topics: dict[bytes, Any], state: Any, bytes_max: int, after_ms_max: int
    ) -> None:
        self.partition = partition
        self.topic = partition.topic
        self.topics = topics
        self.policy, self.config = self.topic.policy, self.topic.config
        self.log, self.route = partition.log, partition.route
        self.state = state
        self.bytes_max, self.after_ms_max = bytes_max, after_ms_max
        self.time_ms_max = 0  # whatever is not later is none of the future

    def admits(self, time_ms: int, now_ms: int) -> bool:
        """The clock is only looked at when time has gone on."""
        self.time_ms_max = now_ms + self.after_ms_max
        return time_ms <= self.time_ms_max

    def holds(self) -> bool:
        topic = self.topic
        return (
            topic.policy is self.policy
            and topic.config is self.config
            and self.partition.spans[-1].log is self.log
            and self.topics.get(topic.name) is topic
        )


class SingleBatches:
    """The requests of one connection that has logged in."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._session = connection.session
        self._service = connection.service
        self._access = connection.service.access
        self._principal: Principal = connection.principal
        self._places: dict[tuple[bytes, int], _Place] = {}

    def take(self, data: memoryview) -> bool:
        single = read_single(data)
        if single is None:
            return False
        place = self._places.get(single.key())
        if place is None or not place.holds():
            place = self._find(single)
            if place is None:
                return False
        topic = place.topic
        if not self._principal.admin and not self._access.allows(self._principal, Action.PUBLISH, topic.name):
            return False
        batch = data[single.start : single.end]
        state = place.state
        try:
            head = check_batch(batch, bytes_max=place.bytes_max)
            if head.transactional or (head.producer_id >= 0 and state.check(head)[0] is not Verdict.APPEND):
                return False
            if head.max_time_ms > place.time_ms_max and not place.admits(head.max_time_ms, self._service.now_ms()):
                return False
            appended = place.log.append_batch(
                batch, head, place.route, origin=Origin.KAFKA, topic_id=topic.id, owned=not batch.readonly
            )
        except MainstemError:
            return False
        base = appended.ref.base_offset
        service = self._service
        state.add(head, base, base + head.count, service.now_ms() if head.producer_id >= 0 else 0)
        service.producers.count_bytes(place.log, topic.id, state, head.size)
        service.counters.messages_in += head.count
        single.start_offset = place.partition.start_offset
        self._session.expect(single)
        single.wait(appended.ticket, self._connection, state, head)
        if place.log.unsynced_bytes > place.log.unsynced_bytes_max:
            self._connection.hold_for(place.log)
        if head.size >= WRITE_NOW_BYTES_MIN:
            service.ticker.write_now()
        return True

    def _find(self, single: SingleBatch) -> _Place | None:
        """Where it goes; None if that is not plain, and then the ordinary handler finds it out again."""
        by_id = single.version >= IDS_VERSION_MIN
        self._places.pop(single.key(), None)
        found = self._connection.plain_partition(single.name, single.index, by_id=by_id)
        if found is None:
            return None
        partition, topics, state, bytes_max = found
        if len(self._places) >= PLACES_MAX:
            self._places.clear()
        after_ms_max = self._service.rules_of(partition.topic).after_ms_max
        place = self._places[single.key()] = _Place(partition, topics, state, bytes_max, after_ms_max)
        return place

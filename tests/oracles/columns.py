"""Frames to Arrow buffers in plain Python: the compiled decoder's oracle."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mainstem.codec.columns import TopicRow
from mainstem.model.errors import CorruptFrame, MainstemError, UnreadableBatch
from mainstem.model.origin import Origin, RecordFlag
from mainstem.model.record import Header
from tests.oracles.batch import crc32c, decode_headers, varint

OFFSET_MAX = (1 << 63) - 1
FRAME_MAGIC = 0x4D534631
FRAME_HEAD = struct.Struct(">IBBBBIIqqqII")
BATCH_HEAD = struct.Struct(">qiibIHiqqqhii")
KIND_DATA = 1
VERBATIM = (Origin.KAFKA, Origin.SPARK)  # batches stored as their client made them
COMPRESSION, APPEND_TIME, TRANSACTIONAL, CONTROL = 7, 8, 16, 32
MS_MIN, MS_MAX = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999

(KEY, VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, HEADERS, CANONICAL, LEVELS, ORIGIN, CONTENT_TYPE,
 FLAGS, STAMP, BATCH, STORED_HEADERS, ORIGIN_NUMBER) = (1 << bit for bit in range(17))  # fmt: skip

Binary = tuple[bytes | None, bytes, bytes, int]


def binary_buffers(values: Sequence[bytes | None]) -> Binary:
    """(validity or None, offsets, data, null count) of a binary column."""
    offsets, valid, at, nulls = [0], bytearray((len(values) + 7) // 8), 0, 0
    for index, value in enumerate(values):
        if value is None:
            nulls += 1
        else:
            valid[index >> 3] |= 1 << (index & 7)
            at += len(value)
        offsets.append(at)
    data = b"".join(value for value in values if value is not None)
    return bytes(valid) if nulls else None, struct.pack(f"<{len(offsets)}i", *offsets), data, nulls


def shown_ms(time_ms: int) -> int:
    """Clients may write any 64 bits; what no reader of timestamps can show is shown as the nearest that it can."""
    wrapped = (time_ms + (1 << 63)) % (1 << 64) - (1 << 63)
    return min(max(wrapped, MS_MIN), MS_MAX)


def _text(value: bytes | None) -> bytes | None:
    return None if value is None else value.decode("utf-8", "replace").encode()


class _Row:
    """One record on its way into the columns."""

    __slots__ = (
        "batch",
        "content_type",
        "flags",
        "headers",
        "key",
        "offset",
        "origin",
        "stamp",
        "stored",
        "time_ms",
        "topic",
        "value",
    )

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    offset: int
    time_ms: int
    stamp: int
    flags: int
    topic: TopicRow
    origin: int
    content_type: bytes | None
    batch: bytes | None
    stored: bytes | None

    @property
    def size(self) -> int:
        sized = (self.batch, self.key, self.value, *(part for header in self.headers for part in header))
        return 24 + sum(len(part or b"") for part in sized)


class _OpenBatch:
    """A batch whose records are being decoded."""

    def __init__(
        self, frame: bytes, records: bytes, count: int, end: int, topic: TopicRow | None, *, by_record: bool
    ) -> None:
        self.frame, head = frame, frame[: 48 + 61]
        self.records, self.left, self.end = records, count, end
        self.topic, self.by_record, self.at, self.head_written = topic, by_record, 0, False
        self.origin: int = head[6]
        self.base_offset, self.stamp = struct.unpack_from(">qq", head, 16)
        self.attributes: int = struct.unpack_from(">H", head, 48 + 21)[0]
        self.base_ms, self.max_ms = struct.unpack_from(">qq", head, 48 + 27)
        self.time_type = 1 if self.attributes & APPEND_TIME else 0
        self.offset_min: int = self.base_offset
        is_odd = self.attributes & (COMPRESSION | APPEND_TIME) or shown_ms(self.base_ms) != self.base_ms
        kept_whole = not by_record and (is_odd or shown_ms(self.max_ms) != self.max_ms)
        self.head = frame if kept_whole else head

    def varint(self, end: int) -> int:
        raw = shift = 0
        while self.at < end:
            byte = self.records[self.at]
            self.at += 1
            raw |= (byte & 127) << shift
            if byte < 128:
                return (raw >> 1) ^ -(raw & 1)
            shift += 7
            if shift > 63:
                break
        raise ValueError

    def sized(self, end: int) -> bytes | None:
        size = self.varint(end)
        if size < -1 or size > end - self.at:
            raise ValueError
        if size < 0:
            return None
        self.at += size
        return self.records[self.at - size : self.at]

    def next_record(self) -> tuple[int, int, int, bytes | None, bytes | None, int, bytes]:
        """Flags, time delta, offset delta, key, value, header count, encoded headers."""
        size = self.varint(len(self.records))
        end = self.at + size
        if size < 1 or end > len(self.records):
            raise ValueError
        flags = self.records[self.at]
        self.at += 1
        time_delta, delta = self.varint(end), self.varint(end)
        key, value, count = self.sized(end), self.sized(end), self.varint(end)
        if count < 0 or count > (end - self.at) // 2:
            raise ValueError
        encoded = self.records[self.at : end]
        self.at = end
        return flags, time_delta, delta, key, value, count, encoded


class ColumnDecoder:
    """See columns.py for the contract."""

    def __init__(
        self,
        columns: int,
        resolve: Callable[[bytes | int], TopicRow | None],
        inflate: Callable[[int, bytes], bytes],
        *,
        start: int = 0,
        end: int = OFFSET_MAX,
        topic: bytes | None = None,
        log_id: int | None = None,
        aborted: Iterable[tuple[int, int, int]] = (),
        translate: Callable[[int, int, bytes], Sequence[Header]] | None = None,
    ) -> None:
        self._columns, self._resolve, self._inflate, self._translate = int(columns), resolve, inflate, translate
        self._start, self._end = start, end
        self._log_id, self._aborted = log_id, list(aborted)
        self._topics: dict[bytes | int, TopicRow | None] = {}
        self._fixed, self._fixed_row = topic is not None, None if topic is None else resolve(topic)
        self._data, self._at = b"", 0
        self._batch: _OpenBatch | None = None
        self._rows: list[_Row] = []
        self._bytes_used = 0
        self._unreadable = b"", 0, 0, 0
        self.position, self.finished = start, False

    @property
    def rows(self) -> int:
        return len(self._rows)

    @property
    def consumed(self) -> int:
        return self._at

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._data, self._at, self._batch = bytes(data), 0, None

    def decode(self, rows_max: int, bytes_max: int) -> bool:
        while not self.finished and self.rows < rows_max and self._bytes_used < bytes_max:
            if self._batch is None or self._batch.left == 0:
                self._batch = self._next_batch()
                if self._batch is None:
                    return False
            self._decode_record(self._batch)
        left = self._batch is not None and self._batch.left > 0
        return not self.finished and (left or self._at < len(self._data))

    def pass_unreadable(self) -> tuple[bytes, int]:
        """After UnreadableBatch: the frame's bytes and the first offset that could not be read; decoding goes on behind."""
        frame, first, end, self._at = self._unreadable
        self._batch = None
        self._pass(end)
        return frame, max(first, self._start)

    # Frames and batches.

    def _cannot_read(self, frame: bytes, first: int, end: int, why: str) -> UnreadableBatch:
        at = self._at if self._batch is not None and self._batch.frame == frame else self._at + len(frame)
        self._unreadable = frame, first, end, at
        return UnreadableBatch(f"offsets {first} to {end - 1} cannot be read: {why}")

    def _refuse(self, why: str) -> CorruptFrame:
        return CorruptFrame(f"{why}, {self._at} bytes into what was read, after offset {self.position}")

    def _pass(self, offset: int) -> None:
        self.position = max(self.position, min(offset, self._end))

    def _next_batch(self) -> _OpenBatch | None:
        while len(self._data) - self._at >= 48:
            head = self._data[self._at : self._at + 48]
            magic, _, kind, _, _, length, _, base, _, _, count, crc = FRAME_HEAD.unpack(head)
            if magic != FRAME_MAGIC:
                if not any(head[:8]) and not any(head[40:]):
                    self._at = len(self._data)  # room preallocated behind the last frame
                    return None
                raise self._refuse("no frame begins here")
            if self._log_id is not None and crc32c(head[:44], crc32c(struct.pack(">Qq", self._log_id, base))) != crc:
                raise self._refuse("the frame header's checksum is wrong")
            if base >= self._end:
                self._pass(base)
                self.finished = True
                return None
            if 48 + length > len(self._data) - self._at:
                return None
            batch = None
            if kind == KIND_DATA and base + count > self._start:
                batch = self._open_batch(self._data[self._at : self._at + 48 + length], base + count)
            self._at += 48 + length
            if batch is not None:
                return batch
            self._pass(base + count)
        return None

    def _open_batch(self, frame: bytes, end: int) -> _OpenBatch | None:
        if len(frame) < 48 + 61:
            raise self._refuse("a data frame without a batch")
        _, length, _, _, crc, attributes, *_, producer_id, _, _, count = BATCH_HEAD.unpack_from(frame, 48)
        base = int.from_bytes(frame[16:24], "big", signed=True)
        batch = frame[48 : 48 + 12 + length]
        if length < 49 or 12 + length > len(frame) - 48:
            raise self._refuse("the batch is not what its frame describes")
        if attributes & CONTROL or (attributes & TRANSACTIONAL and self._is_aborted(producer_id, base)):
            return None
        topic_id = int.from_bytes(frame[12:16], "big")
        by_record = not self._fixed and topic_id == 0
        topic = self._fixed_row if self._fixed else None if by_record else self._topic(topic_id)
        if not by_record and topic is None:
            return None
        if crc32c(batch[21:]) != crc:
            raise self._refuse("the batch's checksum is wrong")
        records = batch[61:]
        if attributes & COMPRESSION:
            try:
                records = self._inflate(attributes & COMPRESSION, records)
            except MainstemError as error:
                self._batch = None
                raise self._cannot_read(frame, base, end, error.message) from error
        return _OpenBatch(frame, records, count, end, topic, by_record=by_record) if count > 0 else None

    def _is_aborted(self, producer_id: int, offset: int) -> bool:
        return any(producer == producer_id and first <= offset <= last for producer, first, last in self._aborted)

    def _topic(self, name: bytes | int) -> TopicRow | None:
        if name not in self._topics:
            self._topics[name] = self._resolve(name)
        return self._topics[name]

    # Records.

    def _decode_record(self, batch: _OpenBatch) -> None:
        try:
            flags, time_delta, delta, key, value, count, encoded = batch.next_record()
        except ValueError:
            raise self._cannot_read(
                batch.frame, batch.offset_min, batch.end, "a record is longer than its batch"
            ) from None
        offset = batch.base_offset + delta
        if not batch.offset_min <= offset < batch.end:
            raise self._cannot_read(batch.frame, batch.offset_min, batch.end, "a record's offset is not its batch's")
        try:
            headers = decode_headers(encoded, count) if count else []
        except MainstemError:
            raise self._cannot_read(batch.frame, batch.offset_min, batch.end, "a record's headers do not fit") from None
        batch.left -= 1
        batch.offset_min = offset + 1
        if offset >= self._end:
            self._pass(offset)
            self.finished = True
            return
        self._pass(offset + 1)
        if batch.left == 0:
            self._pass(batch.end)
        if offset < self._start:
            return
        topic = self._topic(self._name(batch, flags, key, headers)) if batch.by_record else batch.topic
        if topic is None or not topic[4] <= offset < topic[5]:
            return
        row = _Row()
        row.key, row.value, row.flags, row.offset, row.topic = key, value, flags, offset, topic
        row.origin, row.stamp = batch.origin, batch.stamp + delta
        row.time_ms = batch.max_ms if batch.time_type else batch.base_ms + time_delta
        row.content_type = content_type(batch.origin, headers) if self._columns & CONTENT_TYPE else None
        row.batch = None if batch.head_written else batch.head
        batch.head_written = True
        odd = batch.origin not in VERBATIM or any(_text(name) != name for name, _ in headers)
        row.stored = varint(count) + encoded if headers and odd else None
        if headers and self._translate is not None and batch.origin not in VERBATIM:
            headers = list(self._translate(batch.origin, count, encoded))
        row.headers = headers if self._columns & HEADERS else ()
        self._rows.append(row)
        row.flags |= batch.time_type << 8  # the type belongs to the batch; rows of several batches meet here
        self._bytes_used += row.size

    @staticmethod
    def _name(batch: _OpenBatch, flags: int, key: bytes | None, headers: Sequence[Header]) -> bytes:
        if batch.origin not in VERBATIM and flags & RecordFlag.KEY_IS_TOPIC and key is not None:
            return key
        return next((value for name, value in headers if name == b"ms-topic" and value is not None), b"")

    # Columns.

    def take(self) -> dict[int, tuple[Any, ...]]:
        rows, self._rows, self._bytes_used = self._rows, [], 0
        made: dict[int, Callable[[], tuple[Any, ...]]] = {
            KEY: lambda: binary_buffers([row.key for row in rows]),
            VALUE: lambda: binary_buffers([row.value for row in rows]),
            TOPIC: lambda: binary_buffers([row.topic[0] for row in rows]),
            PARTITION: lambda: _numbers("i", [row.topic[3] for row in rows]),
            OFFSET: lambda: _numbers("q", [row.offset for row in rows]),
            TIMESTAMP: lambda: _numbers("q", [shown_ms(row.time_ms) * 1000 for row in rows]),
            TIMESTAMP_TYPE: lambda: _numbers("i", [row.flags >> 8 for row in rows]),
            HEADERS: lambda: _header_buffers([row.headers for row in rows]),
            CANONICAL: lambda: binary_buffers([row.topic[1] for row in rows]),
            LEVELS: lambda: _level_buffers([row.topic[2] for row in rows]),
            ORIGIN: lambda: binary_buffers([Origin(row.origin).name.lower().encode() for row in rows]),
            CONTENT_TYPE: lambda: binary_buffers([_text(row.content_type) for row in rows]),
            FLAGS: lambda: _numbers("i", [row.flags & 0xFF for row in rows]),
            STAMP: lambda: _numbers("q", [row.stamp for row in rows]),
            BATCH: lambda: binary_buffers([row.batch for row in rows]),
            STORED_HEADERS: lambda: binary_buffers([row.stored for row in rows]),
            ORIGIN_NUMBER: lambda: _numbers("i", [Origin(row.origin) for row in rows]),
        }
        return {column: make() for column, make in made.items() if self._columns & column}


def _numbers(code: str, values: Sequence[int]) -> tuple[bytes]:
    return (struct.pack(f"<{len(values)}{code}", *values),)


def _header_buffers(rows: Sequence[Sequence[Header]]) -> tuple[Any, ...]:
    valid, offsets, nulls, at = bytearray((len(rows) + 7) // 8), [0], 0, 0
    for index, headers in enumerate(rows):
        if headers:
            valid[index >> 3] |= 1 << (index & 7)
        else:
            nulls += 1
        at += len(headers)
        offsets.append(at)
    names = binary_buffers([_text(name) for headers in rows for name, _ in headers])
    values = binary_buffers([value for headers in rows for _, value in headers])
    return bytes(valid) if nulls else None, struct.pack(f"<{len(offsets)}i", *offsets), nulls, at, names, values


def _level_buffers(rows: Sequence[Sequence[bytes]]) -> tuple[Any, ...]:
    offsets = [0]
    for levels in rows:
        offsets.append(offsets[-1] + len(levels))
    return (
        struct.pack(f"<{len(offsets)}i", *offsets),
        offsets[-1],
        binary_buffers([level for levels in rows for level in levels]),
    )


def content_type(origin: int, headers: Sequence[Header]) -> bytes | None:
    """Where each protocol keeps it: among MQTT properties, in the AMQP content header, or in a header of its own."""
    wanted = {Origin.MQTT: b"ms-mqtt", Origin.AMQP: b"ms-amqp"}.get(Origin(origin), b"content-type")
    stored = next((value for name, value in headers if name == wanted), None)
    if stored is None:
        return None
    if origin == Origin.MQTT:
        return _mqtt_content_type(stored)
    if origin == Origin.AMQP:
        fits = len(stored) >= 3 and stored[0] & 0x80 and not stored[1] & 1 and len(stored) >= 3 + stored[2]
        return stored[3 : 3 + stored[2]] if fits else None
    return stored


def _mqtt_content_type(properties: bytes) -> bytes | None:
    at = 0
    sizes = {0x01: 1, 0x23: 2, 0x02: 4}
    while at < len(properties):
        name = properties[at]
        at += 1
        if name in sizes:
            at += sizes[name]
        elif name == 0x0B:
            while at < len(properties) and properties[at] >= 0x80:
                at += 1
            at += 1
        elif name in (0x03, 0x08, 0x09, 0x26):
            size = int.from_bytes(properties[at : at + 2], "big")
            if at + 2 + size > len(properties):
                return None
            if name == 0x03:
                return properties[at + 2 : at + 2 + size]
            at += 2 + size
            if name == 0x26:
                at += 2 + int.from_bytes(properties[at : at + 2], "big")
        else:
            return None
    return None

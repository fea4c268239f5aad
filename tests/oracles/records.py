"""Stored records as objects in plain Python: the oracle of `_records.pyx`."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from dataclasses import dataclass

from mainstem.codec.compression import inflate
from mainstem.model.errors import CorruptFrame, InvalidArgument, MainstemError
from mainstem.model.origin import Origin, RecordFlag
from mainstem.model.record import Record
from tests.oracles.batch import (
    BATCH_HEAD,
    FRAME_HEAD,
    KIND_MARKER,
    crc32c,
    decode_headers,
    read_sized,
    read_varint,
    signed,
)
from tests.oracles.frames import (
    CONTROL,
    KIND_DATA,
    BatchHead,
    Buffer,
    FrameHead,
    batch_head,
    check_frame,
    read_batch_head,
    read_frame_head,
)

FLAG_CONTROL = 0x100
OFFSET_MAX = (1 << 63) - 1


@dataclass(slots=True)
class _Reading:
    """What is wanted of a walk over frames, and what the frame at hand says of its records."""

    start_offset: int
    end_offset: int
    inflated_bytes_max: int
    chosen: list[int] | None = None
    stamp: int = -1
    origin: Origin = Origin.BROKER
    trusted: bool = True
    topic: bytes | None = None

    def records(self, batch: memoryview, head: BatchHead) -> list[Record]:
        data: Buffer = batch[BATCH_HEAD.size :]
        if head.codec:
            data = inflate(head.codec, data, self.inflated_bytes_max)
        result: list[Record] = []
        at, delta, dense = 0, -1, head.last_offset_delta == head.count - 1
        for number in range(head.count):
            length, begin = read_varint(data, at, len(data))
            at = begin + length
            if length < 1 or at > len(data):
                raise CorruptFrame(f"record {number} of {head.count} is malformed")
            # In a batch without gaps the place is the offset, whatever a producer wrote: the broker counted so.
            delta_before, delta = delta, number if dense else self._delta(data, begin, at)
            if not delta_before < delta <= head.last_offset_delta:
                raise CorruptFrame(f"record {number} of {head.count} lies outside its batch or out of order")
            offset = head.base_offset + delta
            if offset >= self.end_offset:
                return result
            if offset >= self.start_offset and self.chooses(offset, offset + 1):
                result.append(self._record(head, offset, bytes(data[begin:at])))
        if at != len(data):
            raise CorruptFrame(f"{len(data) - at} bytes follow the last of {head.count} records")
        return result

    def chooses(self, start: int, end: int) -> bool:
        """Whether any offset from `start` to before `end` is wanted."""
        if self.chosen is None:
            return True
        at = bisect_left(self.chosen, start)
        return at < len(self.chosen) and self.chosen[at] < end

    @staticmethod
    def _delta(data: Buffer, at: int, end: int) -> int:
        _, at = read_varint(data, at + 1, end)
        return read_varint(data, at, end)[0]

    def _record(self, head: BatchHead, offset: int, body: bytes) -> Record:
        end = len(body)
        time_delta, at = read_varint(body, 1, end)
        _, at = read_varint(body, at, end)
        key, at = read_sized(body, at, end)
        value, at = read_sized(body, at, end)
        header_count, at = read_varint(body, at, end)
        if header_count < 0:
            raise CorruptFrame(f"a record with {header_count} headers")
        headers = decode_headers(body[at:], header_count)
        flags = body[0] if self.trusted else 0
        time_ms = head.max_time_ms if head.log_append_time else signed(head.first_time_ms + time_delta)
        topic = self.topic
        if topic is None:
            topic = b""
            if self.trusted and self.stamp >= 0:
                named = key if flags & RecordFlag.KEY_IS_TOPIC else dict(reversed(headers)).get(b"ms-topic")
                topic = named or b""
        stamp = self.stamp + offset - head.base_offset if self.stamp >= 0 else -1
        flags |= FLAG_CONTROL if head.control else 0
        return Record(value, key, headers, time_ms, flags, offset, stamp, self.origin, topic)


def decode_batch(buf: Buffer, pos: int = 0, *, inflated_bytes_max: int, verify: bool = True) -> list[Record]:
    """The records of the batch at `pos`. Those of a control batch carry CONTROL_FLAG in `flags`."""
    head = read_batch_head(buf, pos)
    batch = memoryview(buf)[pos : pos + head.size]
    if verify and crc32c(batch[21:]) != head.crc:
        raise CorruptFrame(f"batch at byte {pos}: its checksum does not match")
    return _Reading(head.base_offset, OFFSET_MAX, inflated_bytes_max).records(batch, head)


def decode_frames(
    buf: Buffer,
    log_id: int,
    *,
    start_offset: int = 0,
    end_offset: int | None = None,
    data_only: bool = True,
    inflated_bytes_max: int,
    topic_of: dict[int, bytes] | None = None,
    verify: bool = True,
    bad: list[tuple[int, MainstemError]] | None = None,
) -> list[Record]:
    """The records from `start_offset` to before `end_offset` of a buffer of whole frames, each told where it lies."""
    end = OFFSET_MAX if end_offset is None else end_offset
    return _walk(buf, log_id, _Reading(start_offset, end, inflated_bytes_max), data_only, topic_of, verify, bad)


def note_topics(
    buf: Buffer,
    log_id: int,
    numbers: array[int],
    known: dict[bytes, int],
    *,
    inflated_bytes_max: int,
    topic_of: dict[int, bytes] | None = None,
) -> None:
    """Of one frame: into `numbers` (array('I'), one for each offset) what `known` says of its topic, which new ones join."""
    base_offset = read_frame_head(buf, 0, log_id).base_offset
    for record in decode_frames(buf, log_id, inflated_bytes_max=inflated_bytes_max, topic_of=topic_of):
        numbers[record.offset - base_offset] = known.setdefault(record.topic, len(known))


def decode_chosen(
    buf: Buffer,
    log_id: int,
    offsets: array[int] | memoryview,
    *,
    data_only: bool = True,
    inflated_bytes_max: int,
    topic_of: dict[int, bytes] | None = None,
    verify: bool = True,
    bad: list[tuple[int, MainstemError]] | None = None,
) -> list[Record]:
    """The records at `offsets` (sorted int64, an array('q') or a view of one); all others are stepped over."""
    data = memoryview(offsets).cast("B")
    if len(data) & 7:
        raise InvalidArgument(f"offsets of {len(data)} bytes are not whole int64 numbers")
    numbers = data.cast("q").tolist()
    if not numbers:
        return []
    reading = _Reading(numbers[0], numbers[-1] + 1, inflated_bytes_max, numbers)
    return _walk(buf, log_id, reading, data_only, topic_of, verify, bad)


def _walk(
    buf: Buffer,
    log_id: int,
    reading: _Reading,
    data_only: bool,
    topic_of: dict[int, bytes] | None,
    verify: bool,
    bad: list[tuple[int, MainstemError]] | None,
) -> list[Record]:
    out: list[Record] = []
    pos = 0
    while pos < len(buf):
        head = read_frame_head(buf, pos, log_id)
        if head.base_offset >= reading.end_offset:
            break
        pos += head.size
        if not _wanted(reading, head, data_only):
            continue
        check_frame(buf, head, verify)
        batch = memoryview(buf)[head.pos + FRAME_HEAD.size : head.pos + head.size]
        if data_only and struct.unpack_from(">H", batch, 21)[0] & CONTROL:
            continue
        _begin_frame(reading, head, topic_of)
        try:
            out += reading.records(batch, batch_head(batch))
        except MainstemError as error:
            if bad is None:
                raise
            bad.append((head.base_offset, error))
    return out


def _wanted(reading: _Reading, head: FrameHead, data_only: bool) -> bool:
    end = head.base_offset + head.count
    if head.kind == KIND_MARKER or end <= reading.start_offset or (data_only and head.kind != KIND_DATA):
        return False
    return reading.chooses(head.base_offset, end)


def _begin_frame(reading: _Reading, head: FrameHead, topic_of: dict[int, bytes] | None) -> None:
    if head.origin >= len(Origin):
        raise CorruptFrame(f"frame at byte {head.pos}: origin {head.origin} is unknown to this program")
    reading.stamp, reading.origin = head.stamp, Origin(head.origin)
    reading.trusted = reading.origin != Origin.KAFKA
    reading.topic = (topic_of or {}).get(head.topic_id, b"") if head.topic_id else None

"""Reading frames and batches in plain Python: the oracle of `_frames.pyx`, and its stand-in without a compiler."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

from mainstem.codec._batch_reference import (
    BATCH_HEAD,
    FRAME_HEAD,
    FRAME_MAGIC,
    KIND_MARKER,
    crc32c,
    decode_headers,
    epoch_check,
    frame_head_crc,
    read_sized,
    read_varint,
    signed,
)
from mainstem.codec.compression import inflate
from mainstem.model.errors import CorruptFrame, InvalidArgument, MainstemError, MessageTooLarge
from mainstem.model.origin import Origin, RecordFlag
from mainstem.model.record import Record

Buffer = bytes | bytearray | memoryview

KIND_DATA = 1
CODEC_MASK, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 7, 8, 16, 32
FLAG_CONTROL = 0x100
OFFSET_MAX = (1 << 63) - 1

SLICE_BYTES_MIN = 4096  # below it copying a batch is cheaper than an object for it


@dataclass(slots=True)
class FrameHead:
    """What a frame's head says, and where it was found."""

    pos: int
    kind: int
    origin: int
    topic_id: int
    base_offset: int
    stamp: int
    durable_offset: int
    count: int
    payload_size: int
    size: int
    epoch_check: int = field(repr=False)


@dataclass(slots=True)
class BatchHead:
    """What a batch's head says."""

    base_offset: int
    size: int
    leader_epoch: int
    magic: int = field(repr=False)
    crc: int
    attributes: int
    last_offset_delta: int
    first_time_ms: int
    max_time_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def control(self) -> bool:
        return self.attributes & CONTROL != 0


def read_frame_head(buf: Buffer, pos: int, log_id: int) -> FrameHead:
    """The head of the frame at `pos`; CorruptFrame unless it is whole, of this log, and its payload is in `buf`."""
    where = f"frame at byte {pos}: "
    left = len(buf) - pos
    if pos < 0 or left < FRAME_HEAD.size:
        raise CorruptFrame(where + "shorter than a frame head")
    magic, version, kind, origin, check, payload_size, topic_id, base_offset, stamp, durable, count, crc = (
        FRAME_HEAD.unpack_from(buf, pos)
    )
    if magic != FRAME_MAGIC:
        raise CorruptFrame(where + "no frame begins here (magic)")
    if frame_head_crc(buf, pos, log_id, base_offset) != crc:
        raise CorruptFrame(where + "the head's checksum does not fit this log and offset")
    if version != 1:
        raise CorruptFrame(where + "the frame's version is newer than this program")
    if not KIND_DATA <= kind <= KIND_MARKER:
        raise CorruptFrame(where + "the frame's kind is unknown")
    if count == 0 or base_offset < 0 or base_offset > OFFSET_MAX - count:
        raise CorruptFrame(where + "the frame covers no offsets that can be")
    if payload_size != 0 if kind == KIND_MARKER else payload_size < BATCH_HEAD.size:
        raise CorruptFrame(where + "the payload's size does not fit the frame's kind")
    if payload_size > left - FRAME_HEAD.size:
        raise CorruptFrame(where + "the buffer ends before the frame does")
    size = FRAME_HEAD.size + payload_size
    return FrameHead(pos, kind, origin, topic_id, base_offset, stamp, durable, count, payload_size, size, check)


def verify_frame(buf: Buffer, pos: int, log_id: int) -> FrameHead:
    """`read_frame_head`, and the batch's own checksum and agreement with the head."""
    head = read_frame_head(buf, pos, log_id)
    _check_frame(buf, head, True)
    return head


def _check_frame(buf: Buffer, head: FrameHead, with_crc: bool) -> None:
    if head.kind == KIND_MARKER:
        return
    where = f"frame at byte {head.pos}: "
    payload = memoryview(buf)[head.pos + FRAME_HEAD.size : head.pos + head.size]
    batch = _batch_head(payload)
    if batch.size & 0xFFFFFFFF != head.payload_size:
        raise CorruptFrame(where + "the batch's length is not the frame's")
    if batch.base_offset != head.base_offset:
        raise CorruptFrame(where + "the batch's base offset is not the frame's")
    if epoch_check(batch.leader_epoch) != head.epoch_check:
        raise CorruptFrame(where + "the batch's leader epoch does not fit the frame's check")
    if batch.magic != 2:
        raise CorruptFrame(where + "the batch is not of magic 2")
    if (batch.last_offset_delta + 1) & 0xFFFFFFFF != head.count:
        raise CorruptFrame(where + "the batch's last offset is not the frame's")
    if with_crc and crc32c(payload[21:]) != batch.crc:
        raise CorruptFrame(where + "the batch's checksum does not fit")


def frame_heads(buf: Buffer, log_id: int) -> list[FrameHead]:
    """The heads of all frames in a buffer of whole frames, in order."""
    heads: list[FrameHead] = []
    pos = 0
    while pos < len(buf):
        heads.append(read_frame_head(buf, pos, log_id))
        pos += heads[-1].size
    return heads


def sent_batches(buf: Buffer, log_id: int, start_offset: int, bytes_max: int) -> tuple[list[Buffer], int, int] | None:
    """The batches of Kafka clients in a buffer of whole frames, without the heads, from the one that holds `start_offset`:
    as (buffers, bytes, records). As many as fit into `bytes_max`, and the first in any case.

    Small ones are joined into one buffer, large ones are slices. None where a frame of another origin lies among them.
    """
    whole = memoryview(buf)
    found: list[Buffer] = []
    total = records = 0
    for head in frame_heads(buf, log_id):
        if head.kind != KIND_DATA or head.base_offset + head.count <= start_offset:
            continue
        if head.origin != Origin.KAFKA:
            return None
        batch = whole[head.pos + head.size - head.payload_size : head.pos + head.size]
        if found and total + len(batch) > bytes_max:
            break
        found.append(batch)
        total += len(batch)
        records += record_count(batch)
    return (found if total >= len(found) * SLICE_BYTES_MIN else [b"".join(found)]), total, records


def record_count(buf: Buffer) -> int:
    """How many records the batches in a buffer say they have."""
    total = at = 0
    while at + BATCH_HEAD.size <= len(buf):
        size, count = struct.unpack_from(">I", buf, at + 8)[0], struct.unpack_from(">I", buf, at + 57)[0]
        total += count
        at += 12 + size
    return total


def frames_since(buf: Buffer, log_id: int, time_ms: int) -> tuple[int | None, list[int]]:
    """Of the frames with records in a buffer, by the newest time each batch names: (the newest of all or None, the
    positions of those that reach `time_ms`)."""
    times = {
        head.pos: struct.unpack_from(">q", buf, head.pos + FRAME_HEAD.size + 35)[0]
        for head in frame_heads(buf, log_id)
        if head.kind == KIND_DATA and not buf[head.pos + FRAME_HEAD.size + 22] & CONTROL
    }
    return max(times.values(), default=None), [pos for pos, newest in times.items() if newest >= time_ms]


def _batch_head(data: Buffer, pos: int = 0) -> BatchHead:
    base_offset, length, *rest = BATCH_HEAD.unpack_from(data, pos)
    rest[3] &= 0xFFFF  # attributes are bits
    return BatchHead(base_offset, length + 12, *rest)


def read_batch_head(buf: Buffer, pos: int = 0) -> BatchHead:
    """The head of the batch at `pos`, which must lie whole in `buf`; its checksum is not looked at."""
    if not 0 <= pos <= len(buf):
        raise CorruptFrame(f"batch at byte {pos}: outside the buffer of {len(buf)} bytes")
    left = len(buf) - pos
    if left < BATCH_HEAD.size:
        raise CorruptFrame(f"batch at byte {pos}: {left} bytes are shorter than a batch head")
    head = _batch_head(buf, pos)
    if head.magic != 2:
        raise InvalidArgument(
            f"batch at byte {pos}: magic {head.magic & 0xFF}, only 2 is taken (message format of Kafka 0.11 and later)"
        )
    if head.size < BATCH_HEAD.size or head.size > left:
        raise CorruptFrame(f"batch at byte {pos}: it says {head.size} bytes, {left} are there")
    return head


def split_batches(buf: Buffer) -> list[memoryview]:
    """The batches of a Kafka records field, as views of it."""
    whole = memoryview(buf)
    parts: list[memoryview] = []
    pos = 0
    while pos < whole.nbytes:
        size = read_batch_head(whole, pos).size
        parts.append(whole[pos : pos + size])
        pos += size
    return parts


def check_batch(buf: Buffer, *, bytes_max: int) -> BatchHead:
    """Refuses what a producer must not send; the records themselves stay unopened."""
    if len(buf) > bytes_max:
        raise MessageTooLarge(f"a batch of {len(buf)} bytes, limit {bytes_max}")
    head = read_batch_head(buf)
    if head.size != len(buf):
        raise CorruptFrame(f"the batch says {head.size} bytes, {len(buf)} were sent")
    crc = crc32c(memoryview(buf)[21:])
    if crc != head.crc:
        raise CorruptFrame(f"the batch's checksum is {crc:#010x}, its head says {head.crc:#010x}")
    if head.count < 1 or head.last_offset_delta != head.count - 1:
        raise InvalidArgument(
            f"the batch has {head.count} records but its last offset delta is {head.last_offset_delta}"
        )
    if head.codec > 4:
        raise InvalidArgument(f"compression {head.codec} is none of 0 to 4")
    if head.attributes & ~(CODEC_MASK | TRANSACTIONAL):
        raise InvalidArgument(
            f"attributes {head.attributes:#06x}: a producer may only set compression and the transactional bit"
        )
    if head.producer_id >= 0:
        if head.producer_epoch < 0 or head.base_sequence < 0:
            raise InvalidArgument(
                f"producer {head.producer_id} with epoch {head.producer_epoch} and sequence {head.base_sequence}"
            )
    elif head.transactional:
        raise InvalidArgument("a transactional batch without a producer id")
    return head


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
        raise CorruptFrame(f"batch at byte {pos}: its checksum does not fit")
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
        _check_frame(buf, head, verify)
        batch = memoryview(buf)[head.pos + FRAME_HEAD.size : head.pos + head.size]
        if data_only and struct.unpack_from(">H", batch, 21)[0] & CONTROL:
            continue
        _begin_frame(reading, head, topic_of)
        try:
            out += reading.records(batch, _batch_head(batch))
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

"""Reading frames and batches in plain Python: the oracle of `_frames.pyx`."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from mainstem.model.errors import CorruptFrame, InvalidArgument, MessageTooLarge
from mainstem.model.origin import Origin
from tests.oracles.batch import (
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
)

Buffer = bytes | bytearray | memoryview

KIND_DATA = 1
CODEC_MASK, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 7, 8, 16, 32
FLAG_CONTROL = 0x100
OFFSET_MAX = (1 << 63) - 1

SLICE_BYTES_MIN = 4096  # below it copying a batch is cheaper than an object for it
COMPRESSED_RECORDS_MAX = 1 << 24  # of one batch: each takes an offset and a stamp, said or true


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
        raise CorruptFrame(where + "the head's checksum does not match this log and offset")
    if version != 1:
        raise CorruptFrame(where + "the frame's version is newer than this program")
    if not KIND_DATA <= kind <= KIND_MARKER:
        raise CorruptFrame(where + "the frame's kind is unknown")
    if count == 0 or base_offset < 0 or base_offset > OFFSET_MAX - count:
        raise CorruptFrame(where + "the frame's offsets are impossible")
    if payload_size != 0 if kind == KIND_MARKER else payload_size < BATCH_HEAD.size:
        raise CorruptFrame(where + "the payload's size is wrong for the frame's kind")
    if payload_size > left - FRAME_HEAD.size:
        raise CorruptFrame(where + "the buffer ends before the frame does")
    size = FRAME_HEAD.size + payload_size
    return FrameHead(pos, kind, origin, topic_id, base_offset, stamp, durable, count, payload_size, size, check)


def verify_frame(buf: Buffer, pos: int, log_id: int) -> FrameHead:
    """`read_frame_head`, and the batch's own checksum and agreement with the head."""
    head = read_frame_head(buf, pos, log_id)
    check_frame(buf, head, True)
    return head


def check_frame(buf: Buffer, head: FrameHead, with_crc: bool) -> None:
    if head.kind == KIND_MARKER:
        return
    where = f"frame at byte {head.pos}: "
    payload = memoryview(buf)[head.pos + FRAME_HEAD.size : head.pos + head.size]
    batch = batch_head(payload)
    if batch.size & 0xFFFFFFFF != head.payload_size:
        raise CorruptFrame(where + "the batch's length is not the frame's")
    if batch.base_offset != head.base_offset:
        raise CorruptFrame(where + "the batch's base offset is not the frame's")
    if epoch_check(batch.leader_epoch) != head.epoch_check:
        raise CorruptFrame(where + "the batch's leader epoch does not match the frame's")
    if batch.magic != 2:
        raise CorruptFrame(where + "the batch is not of magic 2")
    if (batch.last_offset_delta + 1) & 0xFFFFFFFF != head.count:
        raise CorruptFrame(where + "the batch's last offset is not the frame's")
    if with_crc and crc32c(payload[21:]) != batch.crc:
        raise CorruptFrame(where + "the batch's checksum does not match")


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


def pack_batches(
    buf: bytearray | memoryview, log_id: int, start_offset: int, end_offset: int, bytes_max: int
) -> tuple[int, int, int] | None:
    """The batches of Kafka clients among the frames in a writable buffer are moved together at its front, from the one that
    holds `start_offset` to the last that begins below `end_offset`: as (bytes, records, offset behind them). As many as fit
    into `bytes_max` with their heads, and the first in any case. The last frame may be cut off; a damaged one ends it.

    None where there is no such batch, or a frame of another origin among them: the buffer is spoiled then.
    """
    view = memoryview(buf)
    size = records = pos = first = 0
    next_offset = start_offset
    while pos < len(view):
        try:
            head = read_frame_head(view, pos, log_id)
            if head.kind == KIND_DATA and head.origin == Origin.KAFKA:
                check_frame(view, head, False)
        except CorruptFrame:
            break
        frame_end = head.base_offset + head.count
        if head.base_offset >= end_offset:
            break
        if frame_end > start_offset:
            if head.kind == KIND_DATA:
                if head.origin != Origin.KAFKA:
                    return None
                if not size:
                    first = pos
                elif pos + head.size - first > bytes_max:
                    break
                batch = bytes(view[pos + FRAME_HEAD.size : pos + head.size])
                view[size : size + len(batch)] = batch
                size += len(batch)
                records += record_count(batch)
            next_offset = frame_end
        pos += head.size
    return (size, records, next_offset) if size else None


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


def batch_head(data: Buffer, pos: int = 0) -> BatchHead:
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
    head = batch_head(buf, pos)
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
    """Refuses what a producer must not send. Compressed records stay unopened, the others are looked through."""
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
        raise InvalidArgument(f"compression {head.codec} is not one of 0 to 4")
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
    if head.codec:
        if head.count > COMPRESSED_RECORDS_MAX:
            raise InvalidArgument(f"{head.count} records in a batch; the limit is {COMPRESSED_RECORDS_MAX}")
    elif not _are_records(buf, head.count):
        raise InvalidArgument(f"the batch does not hold the {head.count} records it says")
    return head


def _are_records(batch: Buffer, count: int) -> bool:
    """Whether exactly so many records lie there, each as long as its parts."""
    at, end = BATCH_HEAD.size, len(batch)
    try:
        for _ in range(count):
            length, at = read_varint(batch, at, end)
            after = at + length
            if not at < after <= end:
                return False
            _read_record(batch, at, after)
            at = after
    except CorruptFrame:
        return False
    return at == end


def _read_record(batch: Buffer, at: int, end: int) -> None:
    _, at = read_varint(batch, at + 1, end)  # after its attributes: time and offset
    _, at = read_varint(batch, at, end)
    _, at = read_sized(batch, at, end)
    _, at = read_sized(batch, at, end)
    count, at = read_varint(batch, at, end)
    if not 0 <= count <= (end - at) // 2:
        raise CorruptFrame(f"{count} headers in {end - at} bytes")
    decode_headers(batch[at:end], count)

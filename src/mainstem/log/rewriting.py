"""Parts cut down to some of their records, at the same offsets and stamps: for compaction, retention and erasing."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mainstem.codec.batch import (
    FRAME_HEAD_SIZE,
    KIND_DATA,
    BatchHead,
    FrameHead,
    crc32c,
    decode_frames,
    make_frame,
    read_batch_head,
    rebuild_batches,
    split_batches,
    verify_frame,
)
from mainstem.log.log import Log
from mainstem.model.errors import CorruptFrame, MainstemError
from mainstem.model.record import Record
from mainstem.storage.engine import Buffer, Part

READ_BYTES = 1 << 20
INFLATED_BYTES_MAX = 64 << 20
TIMESTAMP_TYPE, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20
KEPT_ATTRIBUTES = TIMESTAMP_TYPE | TRANSACTIONAL  # of a rewritten batch; it is never compressed
CRC_AT, CHECKED_AT, PRODUCER_AT = 17, 21, 43
_PRODUCER = struct.Struct(">qhi")


@dataclass(slots=True)
class StoredFrame:
    """One frame of a part. `records` is empty where it holds none that readers see, or none that can be decoded."""

    head: FrameHead
    data: memoryview
    batch: BatchHead | None = None  # None: a marker over lost offsets, or state
    records: list[Record] = field(default_factory=list)

    @property
    def is_data(self) -> bool:
        return self.batch is not None and not self.batch.attributes & CONTROL

    @property
    def is_marker(self) -> bool:
        return self.batch is not None and self.batch.attributes & CONTROL != 0

    @property
    def payload(self) -> memoryview:
        return self.data[FRAME_HEAD_SIZE:]


def stored_frames(log: Log, part: Part, topic_of: dict[int, bytes] | None = None) -> Iterator[StoredFrame]:
    """A part's frames, decoded and checked. Damage is refused: it must not be rewritten into something that looks whole."""
    offset = part.base_offset
    while offset < part.end_offset and (piece := log.read_in_thread(offset, READ_BYTES, part.end_offset)) is not None:
        at = 0
        while at < len(piece.data):
            frame = frame_at(log, piece.data, at, topic_of)
            yield frame
            at += frame.head.size
        offset = piece.end_offset


def frame_at(log: Log, data: memoryview, at: int, topic_of: dict[int, bytes] | None = None) -> StoredFrame:
    try:
        head = verify_frame(data, at, log.id)
    except CorruptFrame as error:
        raise CorruptFrame(f"log {log.id}: {error.message}", fix=f"mainstem log verify {log.id}") from None
    frame = StoredFrame(head, data[at : at + head.size])
    if head.kind == KIND_DATA:
        frame.batch = read_batch_head(frame.data, FRAME_HEAD_SIZE)
        frame.records = _records(frame.data, log, topic_of)
    return frame


def _records(frame: memoryview, log: Log, topic_of: dict[int, bytes] | None) -> list[Record]:
    """A client's batch that does not decode has none; it is kept as it is."""
    bad: list[tuple[int, MainstemError]] = []
    return decode_frames(frame, log.id, inflated_bytes_max=INFLATED_BYTES_MAX, topic_of=topic_of, verify=False, bad=bad)


def keep_records(frame: StoredFrame, log_id: int, records: list[Record]) -> bytes:
    """The frame with only these of its records (at least one). It still covers its last offset."""
    head, old = frame.head, frame.batch
    assert old is not None
    last = head.base_offset + head.count - 1
    batches = rebuild_batches(records, attributes=old.attributes & KEPT_ATTRIBUTES, last_offset=last)
    parts: list[bytes] = []
    for batch in split_batches(batches):
        base = int.from_bytes(batch[:8], "big")
        stamp = head.stamp + base - head.base_offset
        header, body = make_frame(
            _of_producer(batch, old),
            log_id,
            base,
            stamp,
            head.durable_offset,
            head.origin,
            head.topic_id,
            old.leader_epoch,
        )
        parts += (bytes(header), bytes(body))
    return b"".join(parts)


def _of_producer(batch: memoryview, old: BatchHead) -> Buffer:
    """A transaction's batch keeps its producer: by that its marker finds it. The sequence was settled long ago."""
    if old.producer_id < 0 and not old.attributes & TRANSACTIONAL:
        return batch
    copy = bytearray(batch)
    _PRODUCER.pack_into(copy, PRODUCER_AT, old.producer_id, old.producer_epoch, old.base_sequence)
    struct.pack_into(">I", copy, CRC_AT, crc32c(memoryview(copy)[CHECKED_AT:]))
    return copy


def cut_down(
    log: Log,
    part: Part,
    stays: Callable[[Record], bool],
    *,
    others_stay: bool = True,
    topic_of: dict[int, bytes] | None = None,
) -> tuple[list[Buffer], int, int]:
    """The part's frames with the records that stay, and how many there were before and after.

    `others_stay`: also frames without records for readers (state, markers).
    """
    frames: list[Buffer] = []
    before = after = 0
    for frame in stored_frames(log, part, topic_of):
        kept = [record for record in frame.records if stays(record)]
        before += len(frame.records)
        after += len(kept)
        if len(kept) == len(frame.records) and (kept or others_stay):
            frames.append(bytes(frame.data))
        elif kept:
            frames.append(keep_records(frame, log.id, kept))
    return frames, before, after


def without_front(log: Log, data: memoryview, before_offset: int) -> memoryview:
    """What was read, without the records of its first frame that lie before the offset: they were deleted."""
    frame = frame_at(log, data, 0)
    kept = [record for record in frame.records if record.offset >= before_offset]
    if len(kept) == len(frame.records):
        return data
    return memoryview((keep_records(frame, log.id, kept) if kept else b"") + bytes(data[frame.head.size :]))

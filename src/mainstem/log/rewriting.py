"""Frames cut down to some of their records, at the same offsets and stamps: for compaction, retention and erasing."""

from __future__ import annotations

from mainstem.codec.batch import (
    FRAME_HEAD_SIZE,
    make_frame,
    read_batch_head,
    read_frame_head,
    rebuild_batches,
    split_batches,
)
from mainstem.model.record import Record

TIMESTAMP_TYPE = 8  # of a batch's attributes: the only one a rewritten batch keeps


def keep_records(frame: memoryview, log_id: int, records: list[Record]) -> bytes:
    """The frame with only these of its records (decoded from it, at least one). It still covers its last offset.

    A rewritten batch is plain: not compressed, of no producer and no transaction, all of which were settled before.
    """
    head = read_frame_head(frame, 0, log_id)
    old = read_batch_head(frame, FRAME_HEAD_SIZE)
    last = head.base_offset + head.count - 1
    batches = rebuild_batches(records, attributes=old.attributes & TIMESTAMP_TYPE, last_offset=last)
    parts: list[bytes] = []
    for batch in split_batches(batches):
        base = int.from_bytes(batch[:8], "big")
        stamp = head.stamp + base - head.base_offset
        header, body = make_frame(
            batch, log_id, base, stamp, head.durable_offset, head.origin, head.topic_id, old.leader_epoch
        )
        parts += (bytes(header), bytes(body))
    return b"".join(parts)

"""When a transaction's records become visible to readers without offsets (MQTT, AMQP): at its COMMIT marker.

A Kafka reader skips what is not committed by itself. Readers that stand at a stamp meet a transaction's records as if
they had been written where its marker stands: the marker takes as many stamps as the transaction has offsets in the
log, plus its own, and names the first of them. So a position stays one number, also inside a committed transaction.

    marker record, header ms-txn:  i64 first offset of the transaction in this log, i64 stamps it takes beyond its own
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainstem.codec.batch import FRAME_HEAD_SIZE, KIND_DATA, decode_batch, frame_heads, read_batch_head
from mainstem.codec.control import read_marker

if TYPE_CHECKING:
    from mainstem.log.log import Log

HEADER = b"ms-txn"
EXTENT = struct.Struct(">qq")
READ_BYTES = 1 << 20
INFLATED_BYTES_MAX = 64 << 20
TRANSACTIONAL, CONTROL = 0x10, 0x20


def extent_header(first_offset: int, stamps: int) -> tuple[bytes, bytes]:
    return (HEADER, EXTENT.pack(first_offset, stamps))


def committed_batches(
    log: Log, marker: bytes, marker_offset: int, marker_stamp: int
) -> Iterator[tuple[bytes, int, int]]:
    """The batches a marker makes visible, in order: (batch, its base offset, the stamp of that offset from now on)."""
    (record,) = decode_batch(marker, inflated_bytes_max=INFLATED_BYTES_MAX)
    extent = record.header(HEADER)
    if not read_marker(record.key or b"") or extent is None:
        return
    producer_id = read_batch_head(marker, 0).producer_id
    offset, _ = EXTENT.unpack(extent)
    stamp = marker_stamp + 1
    while offset < marker_offset and (piece := log.read(offset, READ_BYTES, marker_offset)) is not None:
        at = 0
        for head in frame_heads(piece.data, log.id):
            batch = bytes(piece.data[at + FRAME_HEAD_SIZE : at + head.size])
            at += head.size
            if head.kind != KIND_DATA or not batch:
                continue
            inner = read_batch_head(batch, 0)
            if inner.producer_id == producer_id and inner.attributes & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL:
                yield batch, head.base_offset, stamp
                stamp += head.count
        offset = piece.end_offset

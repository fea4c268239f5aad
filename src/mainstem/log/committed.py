"""When a transaction's records become visible to readers without offsets (MQTT, AMQP): at its COMMIT marker.

A Kafka reader skips what is not committed by itself. Readers that stand at a stamp meet a transaction's records as if
they had been written where its marker stands: the marker takes a stamp for itself and one for each offset from the
transaction's first on, so that the record at `offset` has the stamp `marker's + 1 + offset - first`. So a position stays
one number, also inside a committed transaction, and also after a compaction took some of its records.

A share group that reads uncommitted records meets them where they were written instead, and nothing at the marker: of
its sink [undecided_from, undecided_to) says for which stamps of writing that holds.

    marker record, header ms-txn:  i64 first offset of the transaction in this log, i64 stamps it takes beyond its own
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainstem.codec.batch import FRAME_HEAD_SIZE, KIND_DATA, decode_batch, read_batch_head, verify_frame
from mainstem.codec.control import read_marker

if TYPE_CHECKING:
    from mainstem.log.log import Log
    from mainstem.storage.engine import Buffer

HEADER = b"ms-txn"
EXTENT = struct.Struct(">qq")
READ_BYTES = 1 << 20
INFLATED_BYTES_MAX = 64 << 20
ATTRIBUTES_AT, TRANSACTIONAL, CONTROL = 22, 0x10, 0x20


def extent_header(first_offset: int, stamps: int) -> tuple[bytes, bytes]:
    return (HEADER, EXTENT.pack(first_offset, stamps))


def read_extent(marker: Buffer) -> tuple[bool, int, int] | None:
    """Of a marker's batch: whether it commits, the producer, and the transaction's first offset; None if unmarked."""
    (record,) = decode_batch(marker, inflated_bytes_max=INFLATED_BYTES_MAX)
    extent = record.header(HEADER)
    if extent is None:
        return None
    first, _ = EXTENT.unpack(extent)
    return bool(read_marker(record.key or b"")), read_batch_head(marker, 0).producer_id, first


def taken_stamps(batch: Buffer) -> int:
    """How many stamps a batch takes beyond one for each of its offsets: none, unless it is a marker."""
    if len(batch) <= ATTRIBUTES_AT or not batch[ATTRIBUTES_AT] & CONTROL:
        return 0
    (record,) = decode_batch(batch, inflated_bytes_max=INFLATED_BYTES_MAX)
    extent = record.header(HEADER)
    return EXTENT.unpack(extent)[1] if extent is not None else 0


def committed_batches(
    log: Log, marker: bytes, marker_offset: int, marker_stamp: int, from_stamp: int = 0
) -> Iterator[tuple[bytes, int, int, int]]:
    """The batches a marker makes visible, in order: (batch, its base offset, the stamp of that offset from now on, the
    one it was written at).

    Those that lie wholly before `from_stamp` may be left out.
    """
    extent = read_extent(marker)
    if extent is None or not extent[0]:
        return
    _, producer_id, first = extent
    zero = marker_stamp + 1 - first  # the stamp that offset 0 would have
    offset = max(first, from_stamp - zero, log.low_mark)
    while offset < marker_offset and (piece := log.read_anywhere(offset, READ_BYTES, marker_offset)) is not None:
        at = 0
        while at < len(piece.data):
            head = verify_frame(piece.data, at, log.id)
            batch = bytes(piece.data[at + FRAME_HEAD_SIZE : at + head.size])
            at += head.size
            if head.kind != KIND_DATA or not batch:
                continue
            inner = read_batch_head(batch, 0)
            if inner.producer_id == producer_id and inner.attributes & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL:
                yield batch, head.base_offset, zero + head.base_offset, head.stamp
        offset = piece.end_offset

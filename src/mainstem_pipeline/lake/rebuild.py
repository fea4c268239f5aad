"""From a raw table back to the log: the stored batches, byte for byte.

A batch that was stored uncompressed comes back with its checksum intact. One that was compressed comes back with the same
records in the same order under the same compression; a compressor's output may differ, so its length and checksum may.
A table of one topic out of a shared log holds part of each batch: what comes back then is the batch with those records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.codec.batch import BATCH_HEAD_SIZE, FRAME_HEAD_SIZE, crc32c, deflate, encode_headers

if TYPE_CHECKING:
    import pyarrow as pa

READ_ROWS = 8_192
COMPRESSION = 7


@dataclass(slots=True)
class RebuiltBatch:
    frame_head: bytes
    batch: bytes
    is_exact: bool  # the stored checksum fits


def rebuilt_batches(rows: pa.Table) -> Iterator[RebuiltBatch]:
    """The batches of rows that are in order of log and offset."""
    place = rows.schema.get_field_index("timestamp")
    rows = rows.set_column(place, "timestamp", rows.column("timestamp").cast("int64"))  # µs, exactly
    head, records, base_ms = b"", bytearray(), 0
    count = 0
    for batch in rows.to_batches(max_chunksize=READ_ROWS):
        for row in batch.to_pylist():
            if row["batch"] is not None:
                if head:
                    yield _closed(head, bytes(records), count)
                head, records, count = row["batch"], bytearray(), 0
                base_ms = struct.unpack_from(">q", head, FRAME_HEAD_SIZE + 27)[0]
            records += _record(row, head, base_ms)
            count += 1
    if head:
        yield _closed(head, bytes(records), count)


def _varint(number: int) -> bytes:
    raw = ((number << 1) ^ (number >> 63)) & 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while raw >= 128:
        out.append(raw & 127 | 128)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _record(row: dict[str, Any], head: bytes, base_ms: int) -> bytes:
    base = struct.unpack_from(">q", head, 16)[0]
    if row["stored_headers"] is not None:
        headers = bytes(row["stored_headers"])
    else:
        pairs = [(one["key"].encode(), one["value"]) for one in row["headers"] or ()]
        headers = _varint(len(pairs)) + encode_headers(pairs)
    time_ms = row["timestamp"] // 1000 if row["timestamp_type"] == 0 else base_ms
    body = bytes([row["flags"]]) + _varint(time_ms - base_ms) + _varint(row["offset"] - base)
    body += _sized(row["key"]) + _sized(row["value"]) + headers
    return _varint(len(body)) + body


def _closed(head: bytes, records: bytes, count: int) -> RebuiltBatch:
    frame_head, batch_head = (
        head[:FRAME_HEAD_SIZE],
        bytearray(head[FRAME_HEAD_SIZE : FRAME_HEAD_SIZE + BATCH_HEAD_SIZE]),
    )
    attributes, stored_crc = struct.unpack_from(">H", batch_head, 21)[0], struct.unpack_from(">I", batch_head, 17)[0]
    packed = deflate(attributes & COMPRESSION, records) if attributes & COMPRESSION else records
    struct.pack_into(">i", batch_head, 8, BATCH_HEAD_SIZE + len(packed) - 12)
    struct.pack_into(">i", batch_head, 57, count)
    batch = bytes(batch_head) + packed
    crc = crc32c(batch[21:])
    if crc != stored_crc:
        batch = batch[:17] + struct.pack(">I", crc) + batch[21:]
    return RebuiltBatch(frame_head, batch, crc == stored_crc)

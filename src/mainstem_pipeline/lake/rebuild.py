"""From a raw table back to the log: the stored batches, byte for byte.

A batch comes back as its frame's head and the RecordBatch as it was stored, checksum and all. A table of one topic out of
a shared log holds part of the batches that the broker made for many topics: what comes back then is the batch with those
records, and `is_exact` says so.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.codec.batch import BATCH_HEAD_SIZE, FRAME_HEAD_SIZE, crc32c, deflate, encode_headers

if TYPE_CHECKING:
    import pyarrow as pa

READ_ROWS = 8_192
HEADS_SIZE = FRAME_HEAD_SIZE + BATCH_HEAD_SIZE
COMPRESSION = 7
UNREADABLE = -1
COLUMNS = ("log", "offset", "timestamp", "key", "value", "headers", "flags", "batch", "stored_headers")


@dataclass(frozen=True, slots=True)
class RebuiltBatch:
    frame_head: bytes
    batch: bytes
    is_exact: bool  # the stored checksum fits

    @property
    def frame(self) -> bytes:
        return self.frame_head + self.batch


class _Open:
    """A batch whose rows are coming."""

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.base: int = struct.unpack_from(">q", head, 16)[0]
        self.base_ms: int = struct.unpack_from(">q", head, FRAME_HEAD_SIZE + 27)[0]
        self.records = bytearray()
        self.count = 0

    def closed(self) -> RebuiltBatch:
        if len(self.head) > HEADS_SIZE:  # kept whole, because records alone would not give it back
            return RebuiltBatch(self.head[:FRAME_HEAD_SIZE], self.head[FRAME_HEAD_SIZE:], is_exact=True)
        head, records = bytearray(self.head[FRAME_HEAD_SIZE:]), bytes(self.records)
        stored_crc, attributes = struct.unpack_from(">IH", head, 17)
        method = attributes & COMPRESSION
        packed = deflate(method, records) if method else records
        struct.pack_into(">i", head, 8, BATCH_HEAD_SIZE + len(packed) - 12)
        struct.pack_into(">i", head, 57, self.count)
        crc = crc32c(bytes(head[21:]) + packed)
        struct.pack_into(">I", head, 17, crc)
        return RebuiltBatch(self.head[:FRAME_HEAD_SIZE], bytes(head) + packed, is_exact=crc == stored_crc)


def rebuilt_batches(rows: pa.Table | Iterable[pa.RecordBatch]) -> Iterator[RebuiltBatch]:
    """The batches of rows that are in order of log and offset."""
    batch: _Open | None = None
    log: int | None = None
    for row in _rows(rows):
        head = row["batch"]
        if head is not None and (batch is None or log != row["log"] or batch.base != _base(head)):
            if batch is not None:
                yield batch.closed()
            batch, log = _Open(head), row["log"]
        assert batch is not None, "the first row of a batch has its head"
        if row["flags"] == UNREADABLE:
            batch.head = head
        elif len(batch.head) == HEADS_SIZE:
            batch.records += _record(row, batch)
            batch.count += 1
    if batch is not None:
        yield batch.closed()


def _rows(rows: pa.Table | Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    batches = rows.to_batches(max_chunksize=READ_ROWS) if hasattr(rows, "to_batches") else rows
    for batch in batches:
        chosen = batch.select(list(COLUMNS))
        place = chosen.schema.get_field_index("timestamp")
        chosen = chosen.set_column(place, "timestamp", chosen.column("timestamp").cast("int64"))  # µs, exactly
        for start in range(0, chosen.num_rows, READ_ROWS):
            yield from chosen.slice(start, READ_ROWS).to_pylist()


def _base(head: bytes) -> int:
    base: int = struct.unpack_from(">q", head, 16)[0]
    return base


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


def _record(row: dict[str, Any], batch: _Open) -> bytes:
    if row["stored_headers"] is not None:
        headers = bytes(row["stored_headers"])
    else:
        pairs = [(one["key"].encode(), one["value"]) for one in row["headers"] or ()]
        headers = _varint(len(pairs)) + encode_headers(pairs)
    body = (
        bytes([row["flags"]]) + _varint(row["timestamp"] // 1000 - batch.base_ms) + _varint(row["offset"] - batch.base)
    )
    body += _sized(row["key"]) + _sized(row["value"]) + headers
    return _varint(len(body)) + body

"""Arrow buffers to RecordBatches in plain Python: the compiled encoder's oracle."""

from __future__ import annotations

import struct
from typing import Any

from mainstem.model.errors import MessageTooLarge
from mainstem.model.partitioner import partition_of_key
from tests.oracles.batch import BatchBuilder

FRONT_SIZE = 109  # what a builder's size counts before its first record

Buffer = Any  # any bytes-like object
BinaryColumn = tuple[Buffer | None, Buffer, Buffer, int]
HeaderColumn = tuple[Buffer | None, Buffer, int, BinaryColumn, BinaryColumn]
TimeColumn = tuple[Buffer | None, Buffer, int]


def _is_valid(valid: Buffer | None, row: int) -> bool:
    return valid is None or bool(memoryview(valid).cast("B")[row >> 3] >> (row & 7) & 1)


def _binary(column: BinaryColumn | None, row: int) -> bytes | None:
    if column is None:
        return None
    valid, offsets, data, first = column
    if not _is_valid(valid, row + first):
        return None
    start, end = struct.unpack_from("<ii", offsets, 4 * (row + first))
    return bytes(memoryview(data).cast("B")[start:end]) if end > start else b""


def _headers(column: HeaderColumn | None, row: int) -> list[tuple[bytes, bytes | None]]:
    if column is None:
        return []
    valid, offsets, first, names, values = column
    if not _is_valid(valid, row + first):
        return []
    start, end = struct.unpack_from("<ii", offsets, 4 * (row + first))
    return [(_binary(names, index) or b"", _binary(values, index)) for index in range(start, end)]


def encode_rows(
    rows: Buffer | None,
    start: int,
    stop: int,
    *,
    key: BinaryColumn | None = None,
    value: BinaryColumn | None = None,
    headers: HeaderColumn | None = None,
    times: TimeColumn | None = None,
    now_ms: int = 0,
    batch_bytes_max: int = 1 << 20,
    record_bytes_max: int = 1 << 20,
    compression: int = 0,
    topic: bytes | None = None,
) -> list[tuple[int, bytes]]:
    """(record count, batch with base offset 0) of the rows `start` to `stop` of `rows` (int32), or of the columns.

    A column is (validity or None, int32 offsets, data, first row); headers are a list of (name, value) pairs;
    times are microseconds, `now_ms` where null. A batch ends before it exceeds `batch_bytes_max`. With `topic` each record
    names it (header `ms-topic`), as records of shared logs do.
    """
    builder, batches = BatchBuilder(), []
    named = [] if topic is None else [(b"ms-topic", topic)]
    for index in range(start, stop):
        row = index if rows is None else struct.unpack_from("<i", rows, 4 * index)[0]
        key_bytes, value_bytes, pairs = _binary(key, row), _binary(value, row), named + _headers(headers, row)
        size = len(key_bytes or b"") + len(value_bytes or b"") + sum(_header_size(*pair) for pair in pairs)
        if size > record_bytes_max:
            raise MessageTooLarge(f"row {row} makes a record of {size} bytes, limit {record_bytes_max}")
        if builder.count and builder.size - FRONT_SIZE + size + 40 > batch_bytes_max:
            batches.append((builder.count, builder.seal_batch(0, attributes=compression)))
        time_ms = now_ms
        if times is not None and _is_valid(times[0], row + times[2]):
            time_ms = struct.unpack_from("<q", times[1], 8 * (row + times[2]))[0] // 1000
        builder.add(key_bytes, value_bytes, pairs, time_ms)
    if builder.count:
        batches.append((builder.count, builder.seal_batch(0, attributes=compression)))
    return batches


def key_partitions(rows: int, key: BinaryColumn, partitions: int) -> bytes:
    """The partition (int32) that Kafka's producers choose for each row's key; -1 where it is null."""
    keys = (_binary(key, row) for row in range(rows))
    return struct.pack(f"<{rows}i", *(-1 if one is None else partition_of_key(one, partitions) for one in keys))


def _header_size(name: bytes, value: bytes | None) -> int:
    """As Kafka writes it: zigzag lengths, of 7 bits a byte."""
    sizes = (len(name), -1 if value is None else len(value))
    lengths = sum(max(1, ((size << 1 ^ size >> 63).bit_length() + 6) // 7) for size in sizes)
    return lengths + len(name) + len(value or b"")

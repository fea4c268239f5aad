"""Reading and answering Produce requests of one batch, in plain Python: the oracle of `_single_batch.pyx`.

body     transactional id (must be null) · i16 acks · i32 timeout · 1 topic: name or, from version 13 on, id
         · 1 partition: i32 index · records · [tags]
answer   1 topic · 1 partition: i32 index · i16 error · i64 base offset · i64 append time · i64 log start (v5)
         · no record errors, no message (v8) · i32 throttle time
"""

from __future__ import annotations

import struct
from typing import Any

PRODUCE = 0
VERSION_MIN, VERSION_MAX = 3, 13
FLEXIBLE_VERSION_MIN, IDS_VERSION_MIN = 9, 13
_HEAD = struct.Struct(">hhih")
_ACKS = struct.Struct(">hi")
_INDEX = struct.Struct(">i")


class SingleBatch:
    """One request: what it says, and what its answer says."""

    def __init__(self) -> None:
        self.version = self.correlation = self.index = self.start = self.end = 0
        self.name = b""  # of the topic, or its id
        self.base_offset = self.start_offset = -1

    def key(self) -> tuple[bytes, int]:
        """The partition; ids are told from names by the sign."""
        return self.name, ~self.index if self.version >= IDS_VERSION_MIN else self.index

    def answer(self, error: int) -> bytes:
        """The whole response with its size."""
        flexible = self.version >= FLEXIBLE_VERSION_MIN
        one = b"\2" if flexible else b"\0\0\0\1"
        body = struct.pack(">ihqq", self.index, error, self.base_offset, -1)
        if self.version >= 5:
            body += struct.pack(">q", self.start_offset)
        if flexible:
            name = self.name if self.version >= IDS_VERSION_MIN else _varint(len(self.name) + 1) + self.name
            body = b"\0" + one + name + one + body + b"\1\0\0\0" + bytes(4) + b"\0"
        else:
            body = one + struct.pack(">h", len(self.name)) + self.name + one + body
            body += (b"\0\0\0\0\xff\xff" if self.version >= 8 else b"") + bytes(4)
        return struct.pack(">ii", len(body) + 4, self.correlation) + body


def _varint(value: int) -> bytes:
    return bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7))  # names are short


class _Unlike(Exception):
    """Not of the shape."""


class _Reader:
    """Reads on in a request; raises where it ends too early."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.at:
            raise _Unlike
        self.at += size
        return bytes(self.data[self.at - size : self.at])

    def unpack(self, form: struct.Struct) -> Any:
        return form.unpack(self.take(form.size))

    def expect(self, what: bytes) -> None:
        if self.take(len(what)) != what:
            raise _Unlike

    def size(self, *, flexible: bool, wide: bool = False) -> int:
        """Of a string (or, `wide`, of bytes) that is not null."""
        if not flexible:
            return int.from_bytes(self.take(4 if wide else 2), "big", signed=True)
        value = shift = 0
        for _ in range(5):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value - 1
            shift += 7
        raise _Unlike


def read_single(data: memoryview) -> SingleBatch | None:
    """The request, if it is Produce with acks, of one batch to one partition, outside of transactions."""
    try:
        return _read_single(_Reader(data))
    except _Unlike:
        return None


def _read_single(reader: _Reader) -> SingleBatch:
    found = SingleBatch()
    key, found.version, found.correlation, client_size = reader.unpack(_HEAD)
    flexible = found.version >= FLEXIBLE_VERSION_MIN
    one, no_tags = b"\2" if flexible else b"\0\0\0\1", b"\0" if flexible else b""
    if key != PRODUCE or not VERSION_MIN <= found.version <= VERSION_MAX:
        raise _Unlike
    reader.take(max(client_size, 0))
    reader.expect(no_tags)
    reader.expect(b"\0" if flexible else b"\xff\xff")  # no transactional id
    acks, _ = reader.unpack(_ACKS)
    if acks not in (-1, 1):
        raise _Unlike
    reader.expect(one)
    size = 16 if found.version >= IDS_VERSION_MIN else reader.size(flexible=flexible)
    if size > 249:
        raise _Unlike
    found.name = reader.take(size)
    reader.expect(one)
    (found.index,) = reader.unpack(_INDEX)
    size = reader.size(flexible=flexible, wide=True)
    found.start, found.end = reader.at, reader.at + size
    if size <= 0 or found.end > len(reader.data):
        raise _Unlike
    reader.at = found.end
    reader.expect(no_tags * 3)
    return found

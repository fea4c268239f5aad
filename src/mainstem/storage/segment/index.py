"""Where in a segment file a frame lies: one entry for about every 4 KiB, in three flat columns.

    NNNNNNNNNNNNNNNNNNNN.index, beside a sealed segment (big-endian head, little-endian columns)

     0  4s   magic "MSI1"
     4  u16  version = 1
     6  u16  0
     8  u64  log id
    16  i64  base offset of the segment
    24  i64  end offset of the segment
    32  i64  stamp of its first frame
    40  i64  stamp of its last frame
    48  u64  bytes of the segment it covers: all of them
    56  u32  entries
    60  u32  crc32c of the columns
    64  u32  crc32c of bytes 0..63
    68       entries × u32 position, entries × u32 offset - base offset, entries × i64 stamp

Derived data: never fsynced, rebuilt from the segment when missing, damaged or not of the same size. 16 bytes an entry,
so the index of a full 64 MiB segment takes at most 256 KiB.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from mainstem.codec.batch import crc32c

INTERVAL_BYTES = 4096
OFFSET_SPAN_MAX = 0xFFFF_FFFF  # what a column can say; a segment is rolled before its offsets span more
HEAD = struct.Struct(">4sHHQqqqqQII")
HEAD_SIZE = HEAD.size + 4
_MAGIC = b"MSI1"
_VERSION = 1
_ENTRY_BYTES = 16

assert array("I").itemsize == 4


@dataclass(frozen=True, slots=True)
class Summary:
    """What the head of an index tells of its segment."""

    log_id: int
    base_offset: int
    end_offset: int
    first_stamp: int
    last_stamp: int
    size_bytes: int


class SparseIndex:
    """Written by one thread, read by any: an entry is visible once its position, written last, is there."""

    __slots__ = ("_offsets", "_positions", "_stamps", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._positions = array("I")
        self._offsets = array("I")
        self._stamps = array("q")

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def size_bytes(self) -> int:
        return len(self._positions) * _ENTRY_BYTES

    def add(self, position: int, base_offset: int, stamp: int) -> None:
        """Tell of the frame at `position`; it is noted if the last entry lies far enough before it."""
        positions = self._positions
        if positions and position - positions[-1] < INTERVAL_BYTES:
            return
        self._stamps.append(stamp)
        self._offsets.append(base_offset - self.base_offset)
        positions.append(position)

    def before_offset(self, offset: int) -> int:
        """The position of a frame at or before the one that holds `offset`; 0 if none is known."""
        entry = bisect_right(self._offsets, offset - self.base_offset, hi=len(self._positions)) - 1
        return self._positions[entry] if entry >= 0 else 0

    def before_stamp(self, stamp: int) -> int:
        """The position of a frame at or before the last one whose stamp is <= `stamp`; 0 if none is known."""
        entry = bisect_right(self._stamps, stamp, hi=len(self._positions)) - 1
        return self._positions[entry] if entry >= 0 else 0

    def before_end(self, end_offset: int) -> int:
        """The position of a frame at or before the last one that begins below `end_offset`; 0 if none is known."""
        entry = bisect_left(self._offsets, end_offset - self.base_offset, hi=len(self._positions)) - 1
        return self._positions[entry] if entry >= 0 else 0

    def at_or_after(self, offset: int) -> int | None:
        """The position of the first known frame that begins at or beyond `offset`; None if none is known."""
        entry = bisect_left(self._offsets, offset - self.base_offset, hi=len(self._positions))
        return self._positions[entry] if entry < len(self._positions) else None

    def boundary(self, position: int) -> int:
        """The largest known start of a frame at or before `position`; 0 if none is known."""
        entry = bisect_right(self._positions, position) - 1
        return self._positions[entry] if entry >= 0 else 0

    def cuts(self, step_bytes: int) -> list[tuple[int, int]]:
        """Starts of frames about `step_bytes` apart, the first frame's first: (position, base offset)."""
        positions, found, at = self._positions, list[tuple[int, int]](), 0
        while at < len(positions):
            found.append((positions[at], self.base_offset + self._offsets[at]))
            at = bisect_left(positions, positions[at] + max(step_bytes, 1))
        return found

    def encode(self, summary: Summary) -> bytes:
        count = len(self._positions)
        columns = b"".join(_little_endian(c) for c in (self._positions, self._offsets[:count], self._stamps[:count]))
        head = HEAD.pack(
            _MAGIC,
            _VERSION,
            0,
            summary.log_id,
            summary.base_offset,
            summary.end_offset,
            summary.first_stamp,
            summary.last_stamp,
            summary.size_bytes,
            count,
            crc32c(columns),
        )
        return head + crc32c(head).to_bytes(4) + columns

    @classmethod
    def decode(cls, data: bytes) -> tuple[SparseIndex, Summary] | None:
        """The index and what it covers; None if it does not validate."""
        summary = read_summary(data)
        if summary is None:
            return None
        count, columns_crc = struct.unpack_from(">II", data, 56)
        columns = memoryview(data)[HEAD_SIZE:]
        if len(columns) != count * _ENTRY_BYTES or crc32c(columns) != columns_crc:
            return None
        index = cls(summary.base_offset)
        for column, begin, end in (
            (index._positions, 0, 4 * count),
            (index._offsets, 4 * count, 8 * count),
            (index._stamps, 8 * count, 16 * count),
        ):
            column.frombytes(columns[begin:end])
            if sys.byteorder == "big":
                column.byteswap()
        return index, summary


def read_summary(data: bytes) -> Summary | None:
    """What the first `HEAD_SIZE` bytes of an index file say; None if they do not validate."""
    if len(data) < HEAD_SIZE or crc32c(data[: HEAD.size]).to_bytes(4) != data[HEAD.size : HEAD_SIZE]:
        return None
    magic, version, _, log_id, base, end, first, last, size, _, _ = HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        return None
    return Summary(log_id, base, end, first, last, size)


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()

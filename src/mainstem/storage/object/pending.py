"""Frames of one log that are not stored yet: in memory, readable at once, on their way into a bundle."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from mainstem.storage.engine import Buffer, FrameRef, Slice
from mainstem.storage.object.bundle import Content
from mainstem.storage.segment.index import SparseIndex


class Pending:
    """One thread adds; any reads: `count` grows last. Once its bundle is closed nothing is added."""

    def __init__(self, log_id: int, part: int, base_offset: int) -> None:
        self.log_id, self.part, self.base_offset = log_id, part, base_offset
        self.end_offset = base_offset
        self.size = self.count = 0
        self.blocks: list[bytes] = []  # of one append each
        self._blocks_at = array("Q")  # where each begins
        self._offsets, self._ends, self._stamps, self._positions = array("q"), array("q"), array("q"), array("Q")
        self.index = SparseIndex(base_offset)

    @property
    def first_stamp(self) -> int:
        return self._stamps[0] if self.count else 0

    @property
    def last_stamp(self) -> int:
        return self._stamps[self.count - 1] if self.count else 0

    def add(self, data: Sequence[Buffer], frames: Sequence[FrameRef]) -> None:
        self._blocks_at.append(self.size)
        self.blocks.append(b"".join(data))
        position = self.size
        for frame in frames:
            self._offsets.append(frame.base_offset)
            self._ends.append(frame.base_offset + frame.count)
            self._stamps.append(frame.stamp)
            self._positions.append(position)
            self.index.add(position, frame.base_offset, frame.stamp)
            position += frame.size
        self.size = position
        self.count = len(self._positions)
        self.end_offset = self._ends[-1]

    def content(self) -> Content:
        stamps = self.first_stamp, self.last_stamp
        place = self.log_id, self.part, 0, self.base_offset, self.end_offset
        return Content(*place, *stamps, self.blocks, self.index)

    def read(self, offset: int, bytes_max: int, end_offset: int | None) -> Slice | None:
        count = self.count
        first = bisect_right(self._ends, offset, hi=count)
        if first == count or (end_offset is not None and self._offsets[first] >= end_offset):
            return None
        begin = self._positions[first]
        last = bisect_right(self._positions, begin + bytes_max, hi=count) - 1  # the last that begins within the limit
        while last > first and self._end_of(last) - begin > bytes_max:
            last -= 1
        if end_offset is not None:
            last = min(last, bisect_right(self._offsets, end_offset - 1, hi=count) - 1)
        return Slice(self._bytes(begin, self._end_of(last)), self._offsets[first], self._ends[last])

    def _end_of(self, frame: int) -> int:
        return self._positions[frame + 1] if frame + 1 < len(self._positions) else self.size

    def _bytes(self, begin: int, end: int) -> memoryview:
        number = bisect_right(self._blocks_at, begin) - 1
        at = self._blocks_at[number]
        if end <= at + len(self.blocks[number]):
            return memoryview(self.blocks[number])[begin - at : end - at]
        found = bytearray()
        while at < end:
            block = self.blocks[number]
            found += memoryview(block)[max(begin - at, 0) : end - at]
            at += len(block)
            number += 1
        return memoryview(found).toreadonly()

    def find_stamp(self, stamp: int) -> int | None:
        """The base offset of the last frame whose stamp is <= `stamp`."""
        at = bisect_right(self._stamps, stamp, hi=self.count) - 1
        return self._offsets[at] if at >= 0 else None

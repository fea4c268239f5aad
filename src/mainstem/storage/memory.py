"""The engine that never touches the disk: frames in fixed buffers, gone when the process ends.

A part is one buffer of a fixed size that only ever fills up, so a reader gets a view of it without a copy and without
a lock, and keeps it alive even when the part is trimmed meanwhile. The log is bounded: at `bytes_max` an append is
refused (Overloaded), until a trim makes room.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from mainstem.codec.batch import frame_heads
from mainstem.model.errors import InvalidArgument, Overloaded, StorageFault
from mainstem.storage.engine import Buffer, FrameRef, Part, Slice, Stat

BYTES_MAX = 256 << 20
PART_BYTES_MIN = 64 << 10
PART_BYTES_MAX = 4 << 20
_BASE_OFFSET = attrgetter("base_offset")
_FIRST_STAMP = attrgetter("first_stamp")


class _MemoryPart:
    """Frames back to back, and where each begins. Readers take `count` first: it grows last."""

    __slots__ = ("buffer", "count", "ends", "generation", "offsets", "positions", "sealed", "size", "span", "stamps")

    def __init__(self, base_offset: int, capacity: int, generation: int = 0) -> None:
        self.buffer = bytearray(capacity)
        self.generation = generation
        self.span = (base_offset, base_offset)  # what it covers, also after frames were taken out
        self.offsets, self.ends, self.stamps, self.positions = array("q"), array("q"), array("q"), array("Q")
        self.size = self.count = 0
        self.sealed = False

    @property
    def base_offset(self) -> int:
        return self.span[0]

    @property
    def end_offset(self) -> int:
        return self.span[1]

    @property
    def first_stamp(self) -> int:
        return self.stamps[0] if self.count else 0

    def add(self, data: Sequence[Buffer], frames: Sequence[FrameRef]) -> None:
        position = self.size
        for buffer in data:
            size = len(buffer)
            self.buffer[position : position + size] = buffer
            position += size
        position = self.size
        for frame in frames:
            self.offsets.append(frame.base_offset)
            self.ends.append(frame.base_offset + frame.count)
            self.stamps.append(frame.stamp)
            self.positions.append(position)
            position += frame.size
        self.size = position
        self.span = (self.span[0], max(self.ends[-1], self.span[1]))
        self.count = len(self.positions)

    def read(self, offset: int, bytes_max: int, end_offset: int | None) -> Slice | None:
        count = self.count
        first = bisect_right(self.ends, offset, hi=count)
        if first == count or (end_offset is not None and self.offsets[first] >= end_offset):
            return None
        begin = self.positions[first]
        after = max(bisect_right(self.positions, begin + bytes_max, hi=count) - 1, first + 1)
        if count - 1 <= after and self._end_of(count - 1) - begin <= bytes_max:
            after = count
        if end_offset is not None:
            after = min(after, bisect_right(self.offsets, end_offset - 1, hi=count))
        view = memoryview(self.buffer).toreadonly()[begin : self._end_of(after - 1)]
        return Slice(view, self.offsets[first], self.ends[after - 1])

    def _end_of(self, frame: int) -> int:
        return self.positions[frame + 1] if frame + 1 < len(self.positions) else self.size

    def part(self, name: str) -> Part:
        last = self.count - 1
        return Part(
            name=name,
            generation=self.generation,
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            first_stamp=self.first_stamp,
            last_stamp=self.stamps[last] if last >= 0 else 0,
            size_bytes=self.size,
            sealed=self.sealed,
        )


class MemoryEngine:
    """See `mainstem.storage.engine.Engine`. `sync` promises nothing: there is nothing to survive."""

    is_local = True

    def __init__(self, log_id: int, *, bytes_max: int = BYTES_MAX) -> None:
        if bytes_max < PART_BYTES_MIN:
            raise InvalidArgument(f"bytes_max is {bytes_max}, must be at least {PART_BYTES_MIN}")
        self._log_id = log_id
        self._bytes_max = bytes_max
        self._part_bytes_max = max(min(PART_BYTES_MAX, bytes_max // 16), PART_BYTES_MIN)
        self._lock = threading.Lock()
        self._parts: tuple[_MemoryPart, ...] = ()
        self._size = self._end_offset = self._last_stamp = 0
        self._closed = False

    def append(self, data: Sequence[Buffer], frames: Sequence[FrameRef]) -> None:
        assert frames[0].base_offset >= self._end_offset, "offsets never go back"
        size = sum(frame.size for frame in frames)
        with self._lock:
            self._check_open()
            if self._size + size > self._bytes_max:
                raise Overloaded(
                    f"the memory log is full: {self._size} of {self._bytes_max} bytes, {size} more to come"
                )
            part = self._writable(frames[0].base_offset, size)
            part.add(data, frames)
            self._size += size
            self._end_offset, self._last_stamp = part.end_offset, frames[-1].stamp

    def sync(self) -> None:
        self._check_open()

    def read(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        self._check_open()
        parts = self._parts
        for part in parts[max(bisect_right(parts, offset, key=_BASE_OFFSET) - 1, 0) :]:
            found = part.read(offset, bytes_max, end_offset)
            if found is not None:
                return found
        return None

    def read_now(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        return self.read(offset, bytes_max, end_offset)

    def find_stamp(self, stamp: int) -> int:
        parts = [part for part in self._parts if part.count]
        at = bisect_right(parts, stamp, key=_FIRST_STAMP) - 1
        if at < 0:
            return self._start_offset
        part = parts[at]
        return part.offsets[bisect_right(part.stamps, stamp, hi=part.count) - 1]

    def roll(self) -> None:
        with self._lock:
            if self._parts and self._parts[-1].count:
                self._parts[-1].sealed = True

    def trim(self, before_offset: int) -> int:
        with self._lock:
            count = 0
            for part in self._parts:
                if not part.sealed or part.end_offset > before_offset:
                    break
                count += 1
                self._size -= part.size
            self._parts = self._parts[count:]
            return self._start_offset

    def replace(self, part: Part, frames: Sequence[Buffer]) -> None:
        with self._lock:
            old = next((p for p in self._parts if _name(p) == part.name and p.generation == part.generation), None)
            if old is None or not old.sealed:
                raise InvalidArgument(f"{part.name}: not a sealed part of this log (any more)")
            new = _MemoryPart(old.base_offset, sum(map(len, frames)), old.generation + 1)
            new.span, new.sealed = old.span, True
            for buffer in frames:
                heads = frame_heads(buffer, self._log_id)
                new.add([buffer], [FrameRef(h.base_offset, h.count, h.stamp, h.size) for h in heads])
            self._parts = tuple(new if p is old else p for p in self._parts)
            self._size += new.size - old.size

    def stat(self) -> Stat:
        with self._lock:
            parts = tuple(part.part(_name(part)) for part in self._parts)
            return Stat(
                self._start_offset, self._end_offset, self._last_stamp, self._size, parts, path=None, clean=False
            )

    def close(self) -> None:
        self._closed = True
        self._parts = ()

    @property
    def durable_offset(self) -> int:
        return 0

    @property
    def _start_offset(self) -> int:
        return self._parts[0].base_offset if self._parts else self._end_offset

    def _check_open(self) -> None:
        if self._closed:
            raise StorageFault("the memory log is closed")

    def _writable(self, base_offset: int, size: int) -> _MemoryPart:
        last = self._parts[-1] if self._parts else None
        if last is not None and not last.sealed:
            if last.size + size <= len(last.buffer):
                return last
            last.sealed = True
        capacity = min(2 * len(last.buffer), self._part_bytes_max) if last is not None else PART_BYTES_MIN
        part = _MemoryPart(base_offset, max(capacity, size))
        self._parts = (*self._parts, part)
        return part


def _name(part: _MemoryPart) -> str:
    return f"{part.base_offset:020d}"

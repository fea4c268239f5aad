"""Records of a shared log that were removed one by one: a bit for each offset, in chunks that exist where a bit is set.

Nobody sees them any more. They stay in their parts until those go; the bits go with the log's start. A million removed
records cost 128 KiB at most, wherever they lie.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

CHUNK_BITS = 16
CHUNK_OFFSETS = 1 << CHUNK_BITS
CHUNK_BYTES = CHUNK_OFFSETS >> 3


class RemovedOffsets:
    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}
        self._counts: dict[int, int] = {}
        self.version = 0  # grows with each change

    def __contains__(self, offset: int) -> bool:
        chunk = self._chunks.get(offset >> CHUNK_BITS)
        if chunk is None:
            return False
        at = offset & (CHUNK_OFFSETS - 1)
        return bool(chunk[at >> 3] >> (at & 7) & 1)

    def __len__(self) -> int:
        return sum(self._counts.values())

    def add(self, offsets: Iterable[int]) -> list[int]:
        """Those that were not removed before."""
        added = []
        for offset in offsets:
            number, at = offset >> CHUNK_BITS, offset & (CHUNK_OFFSETS - 1)
            chunk = self._chunks.get(number)
            if chunk is None:
                chunk = self._chunks[number] = bytearray(CHUNK_BYTES)
                self._counts[number] = 0
            bit = 1 << (at & 7)
            if not chunk[at >> 3] & bit:
                chunk[at >> 3] |= bit
                self._counts[number] += 1
                added.append(offset)
        self.version += bool(added)
        return added

    def count(self, start: int, end: int) -> int:
        """How many lie in [start, end)."""
        total = 0
        for number, count in self._counts.items():
            first = number << CHUNK_BITS
            if first >= end or first + CHUNK_OFFSETS <= start:
                continue
            if start <= first and first + CHUNK_OFFSETS <= end:
                total += count
            else:
                total += self._bits(number, max(start - first, 0), min(end - first, CHUNK_OFFSETS)).bit_count()
        return total

    def _bits(self, number: int, low: int, high: int) -> int:
        chunk = self._chunks[number]
        bits = int.from_bytes(chunk[low >> 3 : (high + 7) >> 3], "little") >> (low & 7)
        return bits & ((1 << (high - low)) - 1)

    def touches(self, start: int, end: int) -> bool:
        """Whether any chunk of [start, end) has bits: cheap, and too careful at most."""
        first, last = start >> CHUNK_BITS, (end - 1) >> CHUNK_BITS
        if last - first < len(self._chunks):
            return any(number in self._chunks for number in range(first, last + 1))
        return any(first <= number <= last for number in self._chunks)  # a gap may be as long as numbers go

    def visible(self, offsets: array[int]) -> array[int]:
        """Those of the sorted offsets that are not removed."""
        if not self._chunks or not offsets or not self.touches(offsets[0], offsets[-1] + 1):
            return offsets
        return array("q", (offset for offset in offsets if offset not in self))

    def forget_before(self, offset: int) -> None:
        """The log begins there now."""
        for number in [number for number in self._chunks if (number + 1) << CHUNK_BITS <= offset]:
            del self._chunks[number], self._counts[number]

    def all(self) -> Iterator[int]:
        """In ascending order."""
        for number in sorted(self._chunks):
            chunk, first = self._chunks[number], number << CHUNK_BITS
            for at, byte in enumerate(chunk):
                if byte:
                    yield from (first + at * 8 + bit for bit in range(8) if byte >> bit & 1)

"""The shared log's topic index in plain Python. See `topic_index.py`."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from pathlib import Path

from mainstem.model.topic_tries import TopicTrie


class TopicIndex:
    def __init__(self, topics: TopicTrie) -> None:
        self.topics = topics
        self.missing: list[tuple[int, int]] = []
        self._offsets = array("q")
        self._numbers = array("I")
        self.covered_end = 0

    @classmethod
    def open(cls, path: Path | None, topics: TopicTrie) -> TopicIndex:
        return cls(topics)

    def add(self, base_offset: int, numbers: memoryview) -> None:
        for at, number in enumerate(numbers):
            self._offsets.append(base_offset + at)
            self._numbers.append(number)
        self.covered_end = base_offset + len(numbers)

    def find_one(self, number: int, start: int, end: int, limit: int) -> array[int]:
        found = array("q")
        for at in range(bisect_left(self._offsets, start), bisect_left(self._offsets, end)):
            if self._numbers[at] == number:
                found.append(self._offsets[at])
                if len(found) == limit:
                    break
        return found

    def find_many(self, bitmap: bytes | bytearray, start: int, end: int, limit: int) -> tuple[array[int], int]:
        found = array("q")
        for at in range(bisect_left(self._offsets, start), bisect_left(self._offsets, end)):
            number = self._numbers[at]
            if number and number >> 3 < len(bitmap) and bitmap[number >> 3] >> (number & 7) & 1:
                found.append(self._offsets[at])
                if len(found) == limit:
                    return found, self._offsets[at] + 1
        return found, end

    def count(self, bitmap: bytes | bytearray, start: int, end: int) -> int:
        return len(self.find_many(bitmap, start, end, 1 << 62)[0])

    def count_one(self, number: int, start: int, end: int) -> int:
        return len(self.find_one(number, start, end, 1 << 62))

    def trim(self, before_offset: int) -> list[int]:
        cut = bisect_left(self._offsets, before_offset)
        gone = set(self._numbers[:cut]) - set(self._numbers[cut:]) - {0}
        del self._offsets[:cut], self._numbers[:cut]
        return sorted(gone)

    def checkpoint(self) -> None: ...

    def close(self) -> None: ...

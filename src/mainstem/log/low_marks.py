"""Records of a shared log that were deleted on request: per topic the offset below which nobody sees them any more.

What was removed one by one (`removed.py`: by the limits of a stream, or on request) is hidden here, too. They stay in
their parts until retention or `topic erase` takes these, and in the topic index, from whose answers they are taken out
here. A mark goes when the log's start has passed it.
"""

from __future__ import annotations

from array import array
from itertools import islice
from typing import TYPE_CHECKING

from mainstem.log.removed import RemovedOffsets
from mainstem.model.errors import Overloaded

if TYPE_CHECKING:
    from mainstem.log.topic_index import TopicIndex

MARKS_MAX = 100_000
LOOKED_AT_MAX = 1_000  # topics, each time somebody asks how many are gone


class LowMarks:
    def __init__(self, index: TopicIndex) -> None:
        self._index = index
        self.by_topic: dict[bytes, int] = {}
        self.deletions: dict[bytes, int] = {}  # marks of whole topics: who comes again under the name is another
        self._gone: dict[bytes, None] = {}  # topics without a record that is seen, when last looked at
        self._highest = 0
        self.removed: RemovedOffsets | None = None  # of a stream's log

    def set(self, topic: bytes, offset: int, *, deletion: bool = False, checked: bool = False) -> bool:
        """Hide the topic's records below `offset`; False if they were hidden already. `checked`: there was room for it
        when it was committed."""
        if not checked and offset > self.by_topic.get(topic, 0):
            self.check(topic)
        if deletion:
            self.deletions[topic] = offset
        if offset <= self.by_topic.get(topic, 0):
            return False
        self.by_topic[topic] = offset
        self._gone[topic] = None
        self._highest = max(self._highest, offset)
        return True

    def check(self, topic: bytes) -> None:
        """Raises Overloaded where there is no room for a mark: before a deletion in several logs changes the first."""
        if topic not in self.by_topic and len(self.by_topic) >= MARKS_MAX:
            raise Overloaded(
                f"{MARKS_MAX} topics of one shared log have deleted records",
                fix="wait until retention has taken them, or shorten it: mainstem topic alter TOPIC --set retention_ms=...",
            )

    def visible(self, offsets: array[int]) -> array[int]:
        """Those of the sorted offsets that are not hidden."""
        if self.removed is not None:
            offsets = self.removed.visible(offsets)
        if not offsets or offsets[0] >= self._highest:
            return offsets
        hidden: set[int] = set()
        first, end = offsets[0], offsets[-1] + 1
        for number, mark in self._marks(first):
            hidden.update(self._index.find_one(number, first, min(mark, end)))
        return array("q", (offset for offset in offsets if offset not in hidden)) if hidden else offsets

    def hidden_count(self, bitmap: bytes | bytearray, start: int, end: int) -> int:
        """How many records of the topics in the bitmap are hidden between two offsets."""
        if self.removed is not None and len(self.removed) and start < end and self.removed.touches(start, end):
            found, _ = self._index.find_many(bitmap, start, end)
            return len(found) - len(self.visible(found))
        if start >= self._highest:
            return 0
        total = 0
        for number, mark in self._marks(start):
            if number >> 3 < len(bitmap) and bitmap[number >> 3] >> (number & 7) & 1:
                total += self._index.count_one(number, start, min(mark, end))
        return total

    def of(self, topic: bytes) -> int:
        return self.by_topic.get(topic, 0)

    def all_gone(self, topic: bytes, number: int) -> bool:
        """Whether every record the topic has here is hidden."""
        mark = self.by_topic.get(topic)
        return mark is not None and self._index.last_offset(number) < mark

    def gone_count(self) -> int:
        """How many topics of the index have nothing that is seen. Of very many, who came again is noticed later."""
        find = self._index.topics.find
        for topic in list(islice(self._gone, LOOKED_AT_MAX)):
            del self._gone[topic]
            number = find(topic)
            if number and self.all_gone(topic, number):
                self._gone[topic] = None  # behind those that were not looked at
        return len(self._gone)

    def prune(self, start_offset: int) -> list[bytes]:
        """Drop the marks that the log's start has passed; returns their topics."""
        passed = [topic for topic, mark in self.by_topic.items() if mark <= start_offset]
        for topic in passed:
            del self.by_topic[topic]
            self.deletions.pop(topic, None)
            self._gone.pop(topic, None)
        self._highest = max(self.by_topic.values(), default=0)
        return passed

    def _marks(self, start: int) -> list[tuple[int, int]]:
        find = self._index.topics.find
        found = ((find(topic), mark) for topic, mark in list(self.by_topic.items()) if mark > start)
        return [(number, mark) for number, mark in found if number]

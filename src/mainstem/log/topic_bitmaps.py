"""Which topics of a shared log a filter means, as bits, remembered: reading on with the same filter looks up nothing.

A filter's bits are extended by the topics that came since. When topics left the dictionary their numbers may mean others
by now, so everything is forgotten then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from mainstem.model.errors import NotFound
from mainstem.model.topic_filter import matches
from mainstem.model.topic_tries import TopicTrie

FILTERS_MAX = 256
BYTES_MAX = 64 << 20  # of all filters of one log together
EXTEND_MAX = 1_000  # topics tested one by one; beyond that the trie is asked again
TRIES = 10


@dataclass(slots=True)
class _Bits:
    bits: bytearray
    topics: int  # how many there were
    numbers_end: int


class TopicBitmaps:
    """Any thread may ask; a race costs a second look-up, never a wrong answer."""

    def __init__(self, topics: TopicTrie) -> None:
        self._topics = topics
        self._kept: OrderedDict[bytes, _Bits] = OrderedDict()
        self._size = 0
        self._removals = 0

    def of(self, topic_filter: bytes) -> bytearray:
        """Number n is bit n % 8 of byte n // 8. Not to be changed."""
        topics = self._topics
        removals, count, end = self._removals, len(topics), topics.numbers_end
        kept = self._kept.get(topic_filter)
        if kept is not None and kept.topics == count and kept.numbers_end == end:
            return kept.bits
        new = count - kept.topics if kept is not None else 0
        if kept is not None and 0 < new <= EXTEND_MAX and end - kept.numbers_end == new:
            bits = self._extended(topic_filter, kept, end) or self._looked_up(topic_filter)
        else:
            bits = self._looked_up(topic_filter)
        if removals == self._removals:
            self._keep(topic_filter, _Bits(bits, count, end))
        return bits

    def of_any(self, filters: Sequence[bytes]) -> bytes | bytearray:
        """The topics that at least one of the filters means."""
        if len(filters) == 1:
            return self.of(filters[0])
        joined, size = 0, 0
        for topic_filter in filters:
            bits = self.of(topic_filter)
            joined |= int.from_bytes(bits, "little")
            size = max(size, len(bits))
        return joined.to_bytes(size, "little")

    def of_without(self, topic_filter: bytes, hidden: Sequence[bytes]) -> bytes | bytearray:
        """The topics that the filter means, and none of the hidden ones."""
        bits = self.of(topic_filter)
        if not hidden:
            return bits
        denied = int.from_bytes(self.of_any(hidden), "little")
        return (int.from_bytes(bits, "little") & ~denied).to_bytes(len(bits), "little")

    def forget(self) -> None:
        """Topics were removed."""
        self._removals += 1
        self._kept = OrderedDict()
        self._size = 0

    def _extended(self, topic_filter: bytes, kept: _Bits, end: int) -> bytearray | None:
        bits = kept.bits + bytes((end + 7) // 8 - len(kept.bits))
        try:
            for number in range(kept.numbers_end, end):
                if matches(topic_filter, self._topics.name(number)):
                    bits[number >> 3] |= 1 << (number & 7)
        except NotFound:  # removed meanwhile
            return None
        return bits

    def _looked_up(self, topic_filter: bytes) -> bytearray:
        for _ in range(TRIES):
            try:
                return self._topics.bitmap(topic_filter)
            except RuntimeError:  # plain dictionaries (no compiled trie) that grew while they were walked
                continue
        return self._topics.bitmap(topic_filter)

    def _keep(self, topic_filter: bytes, bits: _Bits) -> None:
        kept = self._kept
        before = kept.pop(topic_filter, None)
        kept[topic_filter] = bits
        self._size += len(bits.bits) - (len(before.bits) if before is not None else 0)
        while len(kept) > 1 and (len(kept) > FILTERS_MAX or self._size > BYTES_MAX):
            _, oldest = kept.popitem(last=False)
            self._size -= len(oldest.bits)

"""Memory for the answers to Fetch, used again; what lies in it is remembered until then.

    | head room | batch | batch | ... |     one buffer: a stretch of a log as it is sent

Fresh memory costs more than what is read into it, so a buffer is taken again as soon as its answers were sent: the one that
was used longest ago. Until then its stretch need not be read once more: several consumers of a topic are often at the same
place. It is good as long as the log consists of the same files; what is trimmed, compacted or erased makes others of them.
What is asked for again is sent without a copy (`lent_pages.py`): such memory gets other pages before it is used again.
"""

from __future__ import annotations

import mmap
from sys import getrefcount

from mainstem.storage.segment.segment import Segment

BUFFERS_MIN, BUFFERS_MAX = 4, 16  # remembered, and lent at the same time
KEPT_BYTES_MAX, KEPT_STEP_BYTES = 2 * 1024 * 1024, 256 * 1024
REFERENCES_FREE = 2  # the stretch's own, the argument


class Memory(mmap.mmap):
    """Whole pages of its own."""

    asked_again = False
    lent = False  # the kernel may still hold its pages

    def clear(self) -> None:
        if self.lent:
            self.madvise(mmap.MADV_DONTNEED)
        self.lent = self.asked_again = False


class Stretch:
    """What one buffer holds: the batches from `offset` on that were there below `limit`, about `wanted` bytes of them."""

    __slots__ = ("limit", "memory", "next_offset", "offset", "records", "segments", "size", "wanted")

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.segments: tuple[Segment, ...] | None = None
        self.offset = self.limit = self.next_offset = -1
        self.wanted = self.size = self.records = 0

    def view(self) -> memoryview:
        """The buffer is free when nobody has one of these, or a part of it."""
        return memoryview(self.memory)

    def holds(self, segments: tuple[Segment, ...], offset: int, limit: int, wanted: int) -> bool:
        """Whether a read would find the same. Where the log ended the last time, there may be more now."""
        return (
            self.offset == offset
            and self.wanted == wanted
            and self.segments is segments
            and (self.limit == limit or self.next_offset < min(self.limit, limit))
        )


class AnswerBuffers:
    def __init__(self) -> None:
        self._stretches: list[Stretch] = []  # the one that was used last is the last

    def find(self, segments: tuple[Segment, ...], offset: int, limit: int, wanted: int) -> Stretch | None:
        for stretch in reversed(self._stretches):
            if stretch.holds(segments, offset, limit, wanted):
                stretch.memory.asked_again = True
                self._use(stretch)
                return stretch
        return None

    def take(self, size: int) -> Stretch:
        """An empty one with room for `size` bytes."""
        if len(self._stretches) >= BUFFERS_MIN:
            for stretch in self._stretches:
                if len(stretch.memory) >= size and getrefcount(stretch.memory) == REFERENCES_FREE:
                    stretch.segments = None
                    stretch.memory.clear()
                    self._use(stretch)
                    return stretch
        room = -size % KEPT_STEP_BYTES + size
        made = Stretch(Memory(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        if len(made.memory) <= KEPT_BYTES_MAX:
            self._stretches.append(made)
            del self._stretches[:-BUFFERS_MAX]
        return made

    def _use(self, stretch: Stretch) -> None:
        if self._stretches[-1] is not stretch:
            self._stretches.remove(stretch)
            self._stretches.append(stretch)

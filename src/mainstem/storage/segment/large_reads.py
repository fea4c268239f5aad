"""Reads on the loop that meet a large frame: a thread reads it first, as if it lay on another machine (`NotLocal`).

What a thread brought is kept for the read that follows, and for those who read the same a moment later: the newest always,
others while all of them together are within KEPT_BYTES_MAX.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, cast

from mainstem.codec.large_record import LARGE_BYTES
from mainstem.storage.engine import Engine, NotLocal, Slice

if TYPE_CHECKING:
    from mainstem.storage.segment.engine import SegmentEngine
    from mainstem.storage.segment.segment import Segment

KEPT_BYTES_MAX = 128 << 20


class TooLarge(Exception):
    """The frame at the offset has more bytes than the reader may wait for."""


class LargeFrame(NotLocal):
    def bring(self) -> None:
        engine = cast("SegmentEngine", self.engine)
        segments = engine.segments
        found = engine.read(self.offset, 1, self.end_offset)
        if found is not None:
            _kept.add(engine, segments, found)


class _Kept:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: deque[tuple[SegmentEngine, tuple[Segment, ...], Slice]] = deque()

    def add(self, engine: SegmentEngine, segments: tuple[Segment, ...], found: Slice) -> None:
        with self._lock:
            self._found.append((engine, segments, found))
            while len(self._found) > 1 and sum(len(one.data) for _, _, one in self._found) > KEPT_BYTES_MAX:
                self._found.popleft()

    def find(self, engine: SegmentEngine, offset: int) -> Slice | None:
        """As long as the log consists of the same files."""
        for known, segments, found in tuple(self._found):
            if known is engine and segments is engine.segments and found.base_offset <= offset < found.end_offset:
                return found
        return None


_kept = _Kept()


def read_now(engine: SegmentEngine, offset: int, bytes_max: int, end_offset: int | None) -> Slice | None:
    """`engine.read` that keeps nobody waiting: LargeFrame where it would."""
    try:
        return engine.read(offset, min(bytes_max, LARGE_BYTES), end_offset, frame_max=LARGE_BYTES)
    except TooLarge:
        found = _kept.find(engine, offset)
        if found is None:
            raise LargeFrame(cast("Engine", engine), offset, bytes_max, end_offset) from None
        return found

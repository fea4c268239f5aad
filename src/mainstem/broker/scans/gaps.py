"""Offsets that no record has: after an unclean stop a log goes on at the end of what it had reserved.

For readers that is nothing, but who counts offsets counts them too. Gaps are found in the segments' own indexes, an entry
for every few kilobytes: where offsets jump further than the bytes between two entries could hold, and further than they do
elsewhere in the part, the heads of the frames there are looked at. Runs in a thread; what is sealed is looked at once.

A log with a topic index needs none of this: it counts records. Offsets that compaction took out one by one are not found.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from statistics import median_low
from typing import Any

from mainstem.codec.batch import frame_heads
from mainstem.log.log import Log
from mainstem.storage.engine import Part

RECORD_BYTES_MIN = 7  # of a record without key, value and headers
OUTLIER = 4  # times as many offsets as between the entries of the same part
PARTS_MAX = 100_000
READ_BYTES = 1 << 20

Gap = tuple[int, int]  # first offset without a record, first with one again


class Gaps:
    def __init__(self) -> None:
        self._sealed: dict[tuple[int, str, int], list[Gap]] = {}
        self._of_log: dict[int, list[Gap]] = {}

    def load(self, log: Log) -> None:
        """Find the log's gaps; to be called in a thread before they are asked for."""
        cuts = getattr(log.engine, "cuts", None)
        if log.index is not None or cuts is None:
            return
        found: list[Gap] = []
        before: int | None = None
        for part in log.engine.stat().parts:
            if before is not None and part.base_offset > before:
                found.append((before, part.base_offset))
            found += self._in_part(log, part, cuts)
            before = part.end_offset
        self._of_log[log.id] = found

    def _in_part(self, log: Log, part: Part, cuts: Any) -> list[Gap]:
        key = (log.id, part.name, part.generation)
        known = self._sealed.get(key)
        if known is None:
            known = _gaps_of(log, part, cuts(part, 1))
            if part.sealed:
                if len(self._sealed) >= PARTS_MAX:
                    self._sealed.clear()
                self._sealed[key] = known
        return known

    def count(self, log: Log, start: int, end: int) -> int:
        """Offsets in [start, end) that may have records."""
        total = end - start
        for first, last in self._overlapping(log, start, end):
            total -= min(last, end) - max(first, start)
        return total

    def end_after(self, log: Log, start: int, end: int, records: int) -> int:
        """The offset behind so many records from `start` on, at most `end`."""
        at = start
        for first, last in self._overlapping(log, start, end):
            room = max(first, start) - at
            if records <= room:
                break
            records, at = records - room, last
        return min(at + records, end)

    def _overlapping(self, log: Log, start: int, end: int) -> Sequence[Gap]:
        gaps = self._of_log.get(log.id, [])
        low = max(bisect_right(gaps, (start,)) - 1, 0)
        high = bisect_right(gaps, (end,))
        return [one for one in gaps[low:high] if one[1] > start and one[0] < end]


def _gaps_of(log: Log, part: Part, cuts: Sequence[tuple[int, int]]) -> list[Gap]:
    entries = [*cuts, (part.size_bytes, part.end_offset)]
    spans = [(base, after - base, at_after - at) for (at, base), (at_after, after) in pairwise(entries)]
    if not spans:
        return []
    usual = median_low([offsets for _, offsets, _ in spans])
    found: list[Gap] = []
    for base, offsets, size in spans:
        if offsets * RECORD_BYTES_MIN > size and (offsets > usual * OUTLIER or len(spans) <= OUTLIER):
            found += _between_frames(log, base, base + offsets)
    return found


def _between_frames(log: Log, start: int, end: int) -> list[Gap]:
    found: list[Gap] = []
    at = start
    while at < end and (piece := log.read_in_thread(at, READ_BYTES, end)) is not None:
        for head in frame_heads(piece.data, log.id):
            if head.base_offset > at:
                found.append((at, min(head.base_offset, end)))
            at = max(at, head.base_offset + head.count)
        at = max(at, piece.end_offset)
    if at < end:
        found.append((at, end))
    return found

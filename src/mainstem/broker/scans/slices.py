"""Cutting a range of offsets into slices that tasks read in parallel, whatever the number of partitions or segments.

Slices of one log lie end to end: together they cover [start, end) exactly once, gaps between stored frames included, so
that a reader who finds the file of a slice gone or rewritten may read the same offsets elsewhere and miss nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mainstem.storage.engine import Part

SLICE_BYTES_MIN = 64 << 10


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Offsets [start, end) of a log; with `part`, they lie in its file from byte `at` on, where frame `frame_offset` is."""

    start: int
    end: int
    size_bytes: int  # about; a file slice's reader stops at `end`, whatever comes first
    part: Part | None = None
    at: int = 0
    frame_offset: int = 0


def slices_of(
    parts: Sequence[Part],
    start: int,
    end: int,
    *,
    slice_bytes: int,
    cuts_of: Callable[[Part, int], Sequence[tuple[int, int]]] | None,
) -> list[LogSlice]:
    """`cuts_of(part, step)` tells where frames begin in the part's file (position, base offset); None without files."""
    slice_bytes = max(slice_bytes, SLICE_BYTES_MIN)
    inside = [part for part in parts if part.end_offset > start and part.base_offset < end]
    found: list[LogSlice] = []
    for index, part in enumerate(inside):
        first = start if index == 0 else part.base_offset
        last = inside[index + 1].base_offset if index + 1 < len(inside) else end
        cuts = cuts_of(part, slice_bytes) if cuts_of is not None else ()
        found += _by_file(part, first, last, cuts) if cuts else _by_offset(part, first, last, slice_bytes)
    return found


def ranges_of(parts: Sequence[Part], start: int, end: int, *, range_bytes: int) -> list[LogSlice]:
    """Neighbouring parts together until they have `range_bytes`: to be cut into slices by whoever reads one of them."""
    inside = [part for part in parts if part.end_offset > start and part.base_offset < end]
    found: list[LogSlice] = []
    first, size = start, 0
    for index, part in enumerate(inside):
        is_last = index + 1 == len(inside)
        size += part.size_bytes
        if is_last or size >= range_bytes:
            last = end if is_last else inside[index + 1].base_offset
            found.append(LogSlice(first, last, size))
            first, size = last, 0
    return found


def _by_file(part: Part, start: int, end: int, cuts: Sequence[tuple[int, int]]) -> list[LogSlice]:
    found: list[LogSlice] = []
    for index, (at, base) in enumerate(cuts):
        next_at, next_base = cuts[index + 1] if index + 1 < len(cuts) else (part.size_bytes, end)
        first, last = max(base, start) if found else start, min(next_base, end)
        if first < last:
            found.append(LogSlice(first, last, next_at - at, part, at, base))
    if found and found[-1].end < end:  # offsets behind the last frame: the last slice's, so that none is nobody's
        tail = found[-1]
        found[-1] = LogSlice(tail.start, end, tail.size_bytes, part, tail.at, tail.frame_offset)
    return found or _by_offset(part, start, end, part.size_bytes)


def _by_offset(part: Part, start: int, end: int, slice_bytes: int) -> list[LogSlice]:
    """Without a file to look at: equal shares of the offsets."""
    stored = max(part.end_offset - part.base_offset, 1)
    bytes_each = max(part.size_bytes / stored, 1.0)
    step = max(int(slice_bytes / bytes_each), 1)
    return [
        LogSlice(first, min(first + step, end), int((min(first + step, end) - first) * bytes_each))
        for first in range(start, end, step)
    ]

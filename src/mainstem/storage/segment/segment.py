"""One segment file: whole frames one after the other, nothing else. Its name is its first offset, 20 digits, `.log`.

A segment that was rewritten (compaction, erase, repair) with the same offsets has its generation in the name too:
`00000000000000001000.2.log`. Of two generations the higher is the truth; the lower is a leftover.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from mainstem.storage.engine import FrameRef, Part
from mainstem.storage.segment.index import SparseIndex, Summary

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
_NAME = re.compile(r"(\d{20})(?:\.([1-9]\d*))?\.log")


class SegmentName(NamedTuple):
    base_offset: int
    generation: int


def file_name(base_offset: int, generation: int = 0) -> str:
    return f"{base_offset:020d}.{generation}{LOG_SUFFIX}" if generation else f"{base_offset:020d}{LOG_SUFFIX}"


def parse_name(name: str) -> SegmentName | None:
    match = _NAME.fullmatch(name)
    return SegmentName(int(match[1]), int(match[2] or 0)) if match else None


class Segment:
    """What the engine knows of one file. Written under the engine's lock; readers take `end_offset` before `size`."""

    __slots__ = (
        "allocated",
        "base_offset",
        "end_offset",
        "first_stamp",
        "generation",
        "index",
        "last_stamp",
        "named",
        "path",
        "sealed",
        "size",
        "synced",
        "zeroed",
    )

    def __init__(self, path: Path, base_offset: int, generation: int = 0) -> None:
        self.path = path
        self.base_offset = base_offset
        self.generation = generation
        self.end_offset = base_offset
        self.first_stamp = 0
        self.last_stamp = 0
        self.size = 0  # bytes of whole frames; the file may hold more: an append that runs, room ahead
        self.synced = 0  # of these, how many survive a power cut
        self.zeroed = 0  # up to where zeros lie ahead of the writer
        self.allocated = 0  # up to where blocks were asked for
        self.named = False  # whether its name survives a power cut
        self.sealed = False
        self.index: SparseIndex | None = None  # None: load it when it is asked for

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(INDEX_SUFFIX)

    def part(self) -> Part:
        return Part(
            name=self.path.name,
            generation=self.generation,
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            first_stamp=self.first_stamp,
            last_stamp=self.last_stamp,
            size_bytes=self.size,
            sealed=self.sealed,
        )

    def summary(self, log_id: int) -> Summary:
        return Summary(log_id, self.base_offset, self.end_offset, self.first_stamp, self.last_stamp, self.size)

    def note(self, frame: FrameRef) -> None:
        """A frame was written behind the last one. `end_offset`, which makes it visible, comes last."""
        assert self.index is not None
        if not self.size:
            self.first_stamp = frame.stamp
        self.index.add(self.size, frame.base_offset, frame.stamp)
        self.size += frame.size
        self.last_stamp = frame.stamp
        self.end_offset = frame.base_offset + frame.count

"""Reading a segment: one pread of about what was asked for, cut at whole frames. Batches are never opened.

The sparse index knows the start of a frame in every 4 KiB, so only the frames near the two ends of the answer are
walked; what lies between is not looked at, however many small frames it holds.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import AbstractContextManager
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from mainstem.codec.batch import FrameHead
from mainstem.model.errors import CorruptFrame, StorageFault
from mainstem.storage.disk import Readable
from mainstem.storage.engine import Slice
from mainstem.storage.segment.index import INTERVAL_BYTES, SparseIndex
from mainstem.storage.segment.index_cache import IndexCache
from mainstem.storage.segment.large_reads import TooLarge
from mainstem.storage.segment.open_files import OpenFiles
from mainstem.storage.segment.scan import READ_BYTES_MIN, Window
from mainstem.storage.segment.segment import Segment

ANY_SIZE = 1 << 62
_BASE_OFFSET = attrgetter("base_offset")


class Files(Protocol):
    """Where segments are read from: open files, or objects of a store."""

    @property
    def disk(self) -> Readable: ...

    def use(self, path: Path) -> AbstractContextManager[int]: ...

    def ask_page_cache(self, fd: int, position: int) -> None: ...


class Indexes(Protocol):
    def get(self, segment: Segment, log_id: int) -> SparseIndex: ...


def read_frames(
    files: Files,
    indexes: Indexes,
    segment: Segment,
    log_id: int,
    offset: int,
    bytes_max: int,
    end_offset: int | None,
    frame_max: int = ANY_SIZE,
) -> Slice | None:
    """See `Engine.read`; None if this segment holds no frame at or after `offset` and below `end_offset`. TooLarge if the
    first one has more bytes than `frame_max`."""
    size = segment.size
    index = indexes.get(segment, log_id)
    with files.use(segment.path) as fd:
        window = Window(files.disk, fd, str(segment.path), log_id, size)
        begin = index.before_offset(offset)
        files.ask_page_cache(fd, begin)
        window.load(begin, max(bytes_max, READ_BYTES_MIN) + INTERVAL_BYTES)
        found = _first(window, begin, size, offset, frame_max)
        if found is None:
            return None
        begin, first = found
        if end_offset is not None and first.base_offset >= end_offset:
            return None
        limit = min(begin + bytes_max, size)
        hop = index.boundary(limit - 1)  # all frames before this one fit
        if end_offset is not None:
            hop = min(hop, index.before_end(end_offset))
        # The last frame must be met to know its end offset: so go on one index entry earlier.
        end, last = _walk(window, max(begin + first.size, index.boundary(hop - 1)), limit, end_offset, first)
        if last is first and end > begin + first.size:  # damage there: the frames before it are still good
            end, last = _walk(window, begin + first.size, limit, end_offset, first)
        if not window.covers(begin, end):
            window.load(begin, end - begin)
        data = memoryview(window.data)[begin - window.start : end - window.start]
        return Slice(data, first.base_offset, last.base_offset + last.count)


def read_into(
    files: OpenFiles,
    indexes: IndexCache,
    segments: tuple[Segment, ...],
    log_id: int,
    offset: int,
    buffer: memoryview,
) -> int:
    """See `SegmentEngine.read_into`."""
    at = bisect_right(segments, offset, key=_BASE_OFFSET) - 1
    if at < 0 or offset >= segments[at].end_offset:
        return 0
    segment = segments[at]
    begin = indexes.get(segment, log_id).before_offset(offset)
    try:
        file = files.take(segment.path)
        try:
            files.ask_page_cache(file.fd, begin)
            return files.disk.pread_into(file.fd, buffer[: segment.size - begin], begin)
        finally:
            files.give_back(file)
    except FileNotFoundError:
        return 0  # trimmed or replaced meanwhile
    except OSError as error:
        raise StorageFault(f"{segment.path}: cannot read: {error}") from error


def _first(window: Window, position: int, size: int, offset: int, frame_max: int) -> tuple[int, FrameHead] | None:
    """The frame that holds `offset`, or the next one stored."""
    landed = window.skip(position, size, offset)
    if landed < size:
        if window.size_at(landed) > frame_max:
            raise TooLarge
        head = window.head(landed)
        if head.base_offset <= offset:
            return landed, head
    # Not there: offsets are missing, or a damaged head led astray. Check each on the way.
    while position < size:
        head = window.head(position)
        if head.base_offset + head.count > offset:
            return position, head
        position += head.size
    return None


def _walk(window: Window, position: int, limit: int, end_offset: int | None, first: FrameHead) -> tuple[int, FrameHead]:
    """From the frame at `position` as far as they fit; where that is, and the last one met (`first` if none was). Ends
    before a damaged one: who asks for that by its offset is told."""
    end = window.skip_fitting(position, limit, end_offset)
    try:
        return end.position, window.head(end.last) if end.last >= 0 else first
    except CorruptFrame:  # somewhere on the way: now look at each
        pass
    last = first
    while position < end.position:
        try:
            head = window.head(position)
        except CorruptFrame:
            break
        last, position = head, position + head.size
    return position, last


def find_frame(files: Files, indexes: Indexes, segment: Segment, log_id: int, stamp: int) -> int | None:
    """The base offset of the last frame in the segment whose stamp is <= `stamp`, None if all are later."""
    size = segment.size
    position = indexes.get(segment, log_id).before_stamp(stamp)
    found: int | None = None
    with files.use(segment.path) as fd:
        window = Window(files.disk, fd, str(segment.path), log_id, size)
        while position < size:
            head = window.head(position)
            if head.stamp > stamp:
                break
            found, position = head.base_offset, position + head.size
    return found

"""Reading a segment: one pread of about what was asked for, cut at whole frames. Batches are never opened.

The sparse index knows the start of a frame in every 4 KiB, so only the frames near the two ends of the answer are
walked; what lies between is not looked at, however many small frames it holds.
"""

from __future__ import annotations

from mainstem.storage.engine import Slice
from mainstem.storage.segment.index import INTERVAL_BYTES
from mainstem.storage.segment.index_cache import IndexCache
from mainstem.storage.segment.open_files import OpenFiles
from mainstem.storage.segment.scan import READ_BYTES_MIN, Window
from mainstem.storage.segment.segment import Segment


def read_frames(
    files: OpenFiles,
    indexes: IndexCache,
    segment: Segment,
    log_id: int,
    offset: int,
    bytes_max: int,
    end_offset: int | None,
) -> Slice | None:
    """See `Engine.read`; None if this segment holds no frame at or after `offset` and below `end_offset`."""
    size = segment.size
    index = indexes.get(segment, log_id)
    with files.use(segment.path) as fd:
        window = Window(files.disk, fd, str(segment.path), log_id, size)
        begin = index.before_offset(offset)
        window.load(begin, max(bytes_max, READ_BYTES_MIN) + INTERVAL_BYTES)
        while True:
            if begin >= size:
                return None
            first = last = window.head(begin)
            if first.base_offset + first.count > offset:
                break
            begin += first.size
        if end_offset is not None and first.base_offset >= end_offset:
            return None
        limit = min(begin + bytes_max, size)
        hop = index.boundary(limit - 1)  # all frames before this one fit
        if end_offset is not None:
            hop = min(hop, index.before_end(end_offset))
        # The last frame must be met to know its end offset: so go on one index entry earlier.
        end = max(begin + first.size, index.boundary(hop - 1))
        while end < size:
            head = window.head(end)
            if end + head.size > limit or (end_offset is not None and head.base_offset >= end_offset):
                break
            last, end = head, end + head.size
        if not window.covers(begin, end):
            window.load(begin, end - begin)
        data = memoryview(window.data)[begin - window.start : end - window.start]
        return Slice(data, first.base_offset, last.base_offset + last.count)


def find_frame(files: OpenFiles, indexes: IndexCache, segment: Segment, log_id: int, stamp: int) -> int | None:
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

"""The indexes of sealed segments in memory, least recently used ones dropped; the active segment keeps its own.

Bounded for the whole process: 64 MiB cover some 16 GiB of log that is being read at one time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from mainstem.storage.disk import is_full, read_all, write_all
from mainstem.storage.segment.index import SparseIndex
from mainstem.storage.segment.open_files import OpenFiles
from mainstem.storage.segment.scan import scan_frames
from mainstem.storage.segment.segment import Segment
from mainstem.storage.state_file import remove

INDEX_BYTES_MAX = 64 << 20


class IndexCache:
    """Safe for any thread. Two that miss at once both load; the second one's is kept."""

    def __init__(self, files: OpenFiles, bytes_max: int = INDEX_BYTES_MAX) -> None:
        self._files, self._disk = files, files.disk
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._indexes: OrderedDict[Path, SparseIndex] = OrderedDict()
        self._bytes = 0
        self.hits = self.misses = 0

    def get(self, segment: Segment, log_id: int) -> SparseIndex:
        """The segment's index: its own, the cached one, the saved one, or one made by walking the segment."""
        index = segment.index if segment.index is not None else self.find(segment)
        if index is not None:
            return index
        index = self._load(segment, log_id) or self._rebuild(segment, log_id)
        self._keep(segment.path, index)
        return index

    def find(self, segment: Segment) -> SparseIndex | None:
        """One that is loaded."""
        with self._lock:
            index = self._indexes.get(segment.path)
            if index is None:
                self.misses += 1
                return None
            self._indexes.move_to_end(segment.path)
            self.hits += 1
            return index

    def keep(self, segment: Segment, index: SparseIndex) -> None:
        """One that was found elsewhere."""
        self._keep(segment.path, index)

    def save(self, segment: Segment, log_id: int) -> None:
        """Write the index of a sealed segment beside it. Not synced: a damaged one is noticed and rebuilt."""
        index = segment.index
        if index is None:
            return
        try:
            remove(self._disk, segment.index_path)
            fd = self._disk.open(segment.index_path, create=True)
            try:
                write_all(self._disk, fd, [index.encode(segment.summary(log_id))], 0)
            finally:
                self._disk.close(fd)
        except OSError as error:
            if not is_full(error):
                raise
            remove(self._disk, segment.index_path)  # it can be made again
        self._keep(segment.path, index)
        if segment.sealed:
            segment.index = None

    def forget(self, segment: Segment) -> None:
        with self._lock:
            index = self._indexes.pop(segment.path, None)
            if index is not None:
                self._bytes -= index.size_bytes

    def _keep(self, path: Path, index: SparseIndex) -> None:
        with self._lock:
            old = self._indexes.pop(path, None)
            self._bytes += index.size_bytes - (old.size_bytes if old is not None else 0)
            self._indexes[path] = index
            while self._bytes > self._bytes_max and len(self._indexes) > 1:
                self._bytes -= self._indexes.popitem(last=False)[1].size_bytes

    def _load(self, segment: Segment, log_id: int) -> SparseIndex | None:
        try:
            fd = self._disk.open(segment.index_path, read_only=True)
        except FileNotFoundError:
            return None
        try:
            found = SparseIndex.decode(read_all(self._disk, fd, 0, self._disk.size(fd)))
        finally:
            self._disk.close(fd)
        if found is None or (found[1].log_id, found[1].size_bytes) != (log_id, segment.size):
            return None
        return found[0]

    def _rebuild(self, segment: Segment, log_id: int) -> SparseIndex:
        index = SparseIndex(segment.base_offset)
        with self._files.use(segment.path) as fd:
            for position, head in scan_frames(self._disk, fd, str(segment.path), log_id, 0, segment.size):
                index.add(position, head.base_offset, head.stamp)
        return index

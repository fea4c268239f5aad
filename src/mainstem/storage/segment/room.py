"""Room ahead of the writer: what a file grows into is prepared in larger pieces than it is written in.

    frames, frames, ... | zeros        | reserved blocks
                        ^ size         ^ zeroed          ^ allocated

A sync of bytes that overwrite zeros changes nothing that the file system has to write down: it takes about half as
long. And a page cache keeps a file in pieces as large as its writes: large ones cost writers and readers less. The price
is that small writes which are synced at once are written twice, first as zeros. Blocks that are only reserved, without
zeros, help large writes. A file ends with its last frame again once it is sealed or closed; after a crash recovery cuts
off what is only zeros.
"""

from __future__ import annotations

from pathlib import Path

from mainstem.storage.disk import Disk, is_full, write_all
from mainstem.storage.segment.segment import Segment

ZEROS_BYTES_MAX = 256 << 10
LARGE_BYTES_MIN = 64 << 10  # such a write has no use for zeros: written twice it costs more than its sync gains
ALLOCATION_BYTES_MIN = 1 << 20
ALLOCATION_BYTES_MAX = 64 << 20
FREE_SHARE_MAX = 100  # at most one hundredth of what is free is prepared
_ZEROS = memoryview(bytes(2 * ZEROS_BYTES_MAX))


class Room:
    """Of a log's segments; what was prepared for each is noted in it. A full disk has none, which the write itself tells."""

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int) -> None:
        self._disk, self._directory, self._segment_bytes = disk, directory, segment_bytes
        self._zeros_bytes = min(ZEROS_BYTES_MAX, segment_bytes // 16)
        self._after_large = False

    def prepare(self, segment: Segment, fd: int, size: int) -> None:
        """Just before `size` bytes are written."""
        end = segment.size + size
        after_large, self._after_large = self._after_large, size >= LARGE_BYTES_MIN
        if self._after_large:
            if segment.allocated < min(end, self._segment_bytes):
                self.reserve(segment, fd)
        elif (
            end > segment.zeroed and segment.size >= self._zeros_bytes and not after_large
        ):  # the next may be large again
            self._fill(segment, fd, end)

    def _fill(self, segment: Segment, fd: int, end: int) -> None:
        begin = max(segment.zeroed, segment.size)
        segment.zeroed = min(-(-end // self._zeros_bytes) * self._zeros_bytes, self._segment_bytes)
        size = segment.zeroed - begin
        if 0 < size <= self._disk.free_bytes(self._directory) // FREE_SHARE_MAX:
            try:
                write_all(self._disk, fd, [_ZEROS[:size]], begin)
            except OSError as error:
                if not is_full(error):
                    raise

    def is_due(self, segment: Segment) -> bool:
        """Whether blocks should be reserved with the next sync."""
        begin = max(segment.allocated, segment.size)
        return begin - segment.size < ALLOCATION_BYTES_MIN // 2 and begin < self._segment_bytes

    def reserve(self, segment: Segment, fd: int, size: int | None = None) -> None:
        """Without a size as much again as it has, within limits."""
        if size is None:
            size = min(max(segment.allocated, ALLOCATION_BYTES_MIN), ALLOCATION_BYTES_MAX)
        begin = max(segment.allocated, segment.size)
        size = min(size, self._segment_bytes - begin)
        if size <= self._disk.free_bytes(self._directory) // FREE_SHARE_MAX:
            self._disk.allocate(fd, begin, size)
        segment.allocated = begin + size  # also if there was no room for it: it is not asked for again

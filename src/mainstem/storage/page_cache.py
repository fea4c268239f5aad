"""Whether what is about to be read lies in the kernel's page cache.

Asked with a read of one byte that must not wait for the disk (`RWF_NOWAIT`), before the real read: about a microsecond,
once for each stretch of a segment. It tells of the stretch's first page, which is the one that misses when the kernel has
not read ahead. Where the kernel or the file system cannot say, nothing is counted.
"""

from __future__ import annotations

import errno
import os

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)  # Linux


class PageCache:
    """Any thread may ask; a count lost between two of them is no harm."""

    __slots__ = ("_byte", "hits", "known", "misses")

    def __init__(self) -> None:
        self.known = bool(_NOWAIT)
        self.hits = 0
        self.misses = 0
        self._byte = bytearray(1)

    def ask(self, fd: int, position: int) -> None:
        """Count a read of `fd` that begins at `position`."""
        if not self.known:
            return
        try:
            os.preadv(fd, [self._byte], position, _NOWAIT)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                self.misses += 1
            else:
                self.known = False
        else:
            self.hits += 1

"""Large files that are deleted give their space back a piece at a time.

A file system that frees a gigabyte at once keeps everybody's syncs waiting, most of all where it is mounted with `discard`:
a bare loop of fdatasync on ext4 waited up to 37 ms while 3 GB were deleted, and up to 3.5 ms where they were cut off in
pieces of 8 MiB with pauses between them. So the name goes at once, and a thread shortens the file that has none.

Only where nobody else has the file: the kernel grants a write lease on a file that is open nowhere else, in no process and
by no mapping, and without a name nobody can open it any more. Where it is read still, its last reader frees all of it, as
ever. So does a disk with little room, whose space is wanted now.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

PIECE_BYTES = 8 << 20
PAUSE_S = 0.01  # 800 MB/s at most
GENTLE_BYTES_MIN = 2 * PIECE_BYTES  # smaller files are deleted whole
ROOM_BYTES_MIN = 4 << 30  # free, or deleted space is given back at once
FILES_MAX = 256  # that wait; more are deleted whole

_F_SETLEASE: int | None = getattr(fcntl, "F_SETLEASE", None)  # Linux


class Reclaimer:
    """One thread, which begins with the first file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._waiting = 0
        self._begun_in = 0  # process: a child has no threads of its parent
        self.pieces = 0  # cut off so far

    @property
    def idle(self) -> bool:
        return not self._waiting

    @property
    def full(self) -> bool:
        return self._waiting >= FILES_MAX

    @contextlib.contextmanager
    def keeping(self, path: Path) -> Iterator[None]:
        """The block takes the file's name away. What had it is given back gently then, if that is worth it."""
        taken = self._open(path)
        try:
            yield
        except BaseException:
            if taken is not None:
                os.close(taken[0])
                self._leave()
            raise
        if taken is not None:
            self._queue.put(taken)

    def _open(self, path: Path) -> tuple[int, int] | None:
        """(descriptor, size) where it is to be cut."""
        if _F_SETLEASE is None:
            return None
        try:
            stat = os.lstat(path)
            if stat.st_size < GENTLE_BYTES_MIN or stat.st_nlink > 1 or not self._enter():
                return None
        except OSError:  # whoever deletes it is told why that fails
            return None
        try:
            room = os.statvfs(path)
            if room.f_bavail * room.f_frsize >= ROOM_BYTES_MIN:
                return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), stat.st_size
        except OSError:
            pass
        self._leave()
        return None

    def _enter(self) -> bool:
        with self._lock:
            if self._begun_in != os.getpid():
                self._begun_in, self._waiting, self._queue = os.getpid(), 0, queue.SimpleQueue()
                threading.Thread(target=self._run, args=(self._queue,), name="reclaimer", daemon=True).start()
            if self._waiting >= FILES_MAX:
                return False
            self._waiting += 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._waiting -= 1

    def _run(self, taken: queue.SimpleQueue[tuple[int, int]]) -> None:
        while True:
            fd, size = taken.get()
            try:
                self._cut(fd, size)
            except OSError:  # it is read still, or the file system knows no leases
                pass
            finally:
                os.close(fd)
                self._leave()

    def _cut(self, fd: int, size: int) -> None:
        assert _F_SETLEASE is not None
        fcntl.fcntl(fd, _F_SETLEASE, fcntl.F_WRLCK)  # refused while anybody else has it
        fcntl.fcntl(fd, _F_SETLEASE, fcntl.F_UNLCK)
        if os.fstat(fd).st_nlink:  # another name was given to it meanwhile
            return
        while size > PIECE_BYTES:
            size -= PIECE_BYTES
            os.ftruncate(fd, size)
            self.pieces += 1
            time.sleep(PAUSE_S)


RECLAIMER = Reclaimer()


def remove_tree(directory: Path) -> None:
    """As `shutil.rmtree` that ignores errors, with large files deleted gently. Not on the loop: it waits where many are."""
    for folder, _, names in os.walk(directory, topdown=False):
        for name in names:
            path = Path(folder, name)
            while RECLAIMER.full:
                time.sleep(PAUSE_S)
            with contextlib.suppress(OSError), RECLAIMER.keeping(path):
                path.unlink()
        with contextlib.suppress(OSError):
            Path(folder).rmdir()

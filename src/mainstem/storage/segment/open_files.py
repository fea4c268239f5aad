"""A bounded set of open segment files, shared by all logs of a process: least recently used ones are closed.

A file stays open while someone holds it (`with files.use(path) as fd`), so a reader is safe against a trim, a rewrite
or an eviction that happens meanwhile. Files with unsynced writes are closed last: the kernel tells a write error to
the next `fdatasync`, but only while it remembers the file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mainstem.storage.disk import REAL_DISK, Disk
from mainstem.storage.page_cache import PageCache

FILES_MAX = 4000


class OpenFile:
    """One descriptor and who uses it."""

    __slots__ = ("dirty", "fd", "forgotten", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.dirty = False
        self.forgotten = False


class OpenFiles:
    """Safe for any thread. Files in use are never closed, so the limit is soft by the number of users at one moment."""

    def __init__(self, disk: Disk, files_max: int = FILES_MAX) -> None:
        assert files_max >= 1
        self.disk = disk
        self.files_max = files_max
        self.page_cache = PageCache()
        self._is_real = disk is REAL_DISK
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    @contextmanager
    def use(self, path: Path, *, create: bool = False) -> Iterator[int]:
        """The file's descriptor for the length of the block. FileNotFoundError if it was trimmed away meanwhile."""
        file = self.take(path, create=create)
        try:
            yield file.fd
        finally:
            self.give_back(file)

    def take(self, path: Path, *, create: bool = False) -> OpenFile:
        """As `use`, for callers that cannot nest; each needs one `give_back`."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = OpenFile(self.disk.open(path, create=create))
                self._evict(keep=file)
            else:
                self._files.move_to_end(path)
            file.users += 1
            return file

    def take_again(self, file: OpenFile) -> bool:
        """`take` one that was taken before, without looking it up; False if it was closed since."""
        with self._lock:
            if file.forgotten:
                return False
            file.users += 1
            return True

    def give_back(self, file: OpenFile) -> None:
        with self._lock:
            file.users -= 1
            if file.forgotten and not file.users:
                self.disk.close(file.fd)

    def ask_page_cache(self, fd: int, position: int) -> None:
        """Count whether a read that begins there has to wait for the disk."""
        if self._is_real:
            self.page_cache.ask(fd, position)

    def mark_dirty(self, path: Path, dirty: bool) -> None:
        file = self._files.get(path)
        if file is not None:
            file.dirty = dirty

    def forget(self, path: Path) -> None:
        """Close it as soon as nobody uses it: it is about to be removed, or its log closed."""
        with self._lock:
            file = self._files.pop(path, None)
            if file is not None:
                self._drop(file)

    def close_all(self) -> None:
        """What nobody uses. Logs that still need theirs open them again."""
        with self._lock:
            for path in [path for path, file in self._files.items() if not file.users]:
                self._drop(self._files.pop(path))

    def _evict(self, keep: OpenFile) -> None:
        for take_dirty in (False, True):
            for path in list(self._files) if len(self._files) > self.files_max else ():
                if len(self._files) <= self.files_max:
                    return
                file = self._files[path]
                if not file.users and file is not keep and (take_dirty or not file.dirty):
                    self._drop(self._files.pop(path))

    def _drop(self, file: OpenFile) -> None:
        file.forgotten = True
        if not file.users:
            self.disk.close(file.fd)

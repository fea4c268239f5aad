"""The few things the storage layer asks of a file system, so that a test can put a faulty one in its place.

What a disk promises: `pwritev` is readable at once but survives a power cut only after `fdatasync` (or `fsync`) of
the same file; a name made, changed or removed survives only after `fsync_dir` of its directory. Nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from mainstem.codec.large_memory import PAGED_BYTES_MIN, Block
from mainstem.storage.engine import Buffer
from mainstem.storage.reclaiming import RECLAIMER
from mainstem.storage.steady import STEADY_BYTES_MIN, read_steadily, read_steadily_into

BUFFERS_MAX = 1024  # IOV_MAX: more buffers than this in one pwritev are refused by the kernel
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE: blocks are reserved, the file does not look longer


class Readable(Protocol):
    """Something that bytes are read from: a disk's file, or what stands for one."""

    def pread(self, fd: int, size: int, position: int) -> bytes: ...


class Disk(Protocol):
    """Files by path and descriptor. Every method raises OSError as the system call would."""

    flushable: bool  # its descriptors are the operating system's, which a `Flusher` may sync

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        """A descriptor. With `create` the file must not exist yet."""

    def close(self, fd: int) -> None: ...

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """May write less than asked; returns how much."""

    def pread(self, fd: int, size: int, position: int) -> bytes: ...

    def pread_into(self, fd: int, buffer: memoryview, position: int) -> int:
        """The same into memory that is there; returns how much came."""

    def size(self, fd: int) -> int: ...

    def truncate(self, fd: int, size: int) -> None: ...

    def allocate(self, fd: int, position: int, size: int) -> bool:
        """Reserve blocks beyond the end without changing the size; False where that cannot be had."""

    def fdatasync(self, fd: int) -> None: ...

    def fsync(self, fd: int) -> None: ...

    def open_dir(self, directory: Path) -> int:
        """A descriptor to fsync the directory by. Only asked of a disk that is `flushable`."""

    def fsync_dir(self, directory: Path) -> None: ...

    def make_dir(self, directory: Path) -> None:
        """With its parents; made so that the names survive. No error if it is there."""

    def rename(self, source: Path, target: Path) -> None: ...

    def link(self, source: Path, target: Path) -> None: ...

    def unlink(self, path: Path) -> None: ...

    def listdir(self, directory: Path) -> list[str]: ...

    def free_bytes(self, directory: Path) -> int: ...

    def settle(self) -> None:
        """Wait until all that was done survives, also where syncs of small files do not wait (`cluster/disk.py`)."""

    def directory_time(self, directory: Path) -> int:
        """Another number whenever a name in the directory came, went or was replaced; -1 if it is not there."""


def choose_sync() -> Callable[[int], None]:
    """fdatasync. macOS has none, and its fsync stops at the disk's own cache; F_FULLFSYNC goes on to the disk."""
    known: Callable[[int], None] | None = getattr(os, "fdatasync", None)
    if known is not None:
        return known
    full: int | None = getattr(fcntl, "F_FULLFSYNC", None)

    def sync(fd: int) -> None:
        if full is None:
            os.fsync(fd)
        else:
            fcntl.fcntl(fd, full)

    return sync


sync_data = choose_sync()


class RealDisk:
    """The operating system's. Stateless: one instance serves everyone."""

    flushable = True

    def __init__(self) -> None:
        self._fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(fd, buffers, position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return os.pread(fd, size, position) if size < STEADY_BYTES_MIN else read_steadily(fd, size, position)

    def pread_into(self, fd: int, buffer: memoryview, position: int) -> int:
        return os.preadv(fd, [buffer], position)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, position: int, size: int) -> bool:
        if self._fallocate is None:
            return False
        result = self._fallocate(fd, _KEEP_SIZE, ctypes.c_int64(position), ctypes.c_int64(size))
        return bool(result == 0)  # no space or not supported: the write itself will tell

    def fdatasync(self, fd: int) -> None:
        sync_data(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def open_dir(self, directory: Path) -> int:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def fsync_dir(self, directory: Path) -> None:
        fd = self.open_dir(directory)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_dir(self, directory: Path) -> None:
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            self.fsync_dir(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        with RECLAIMER.keeping(target):  # what it replaces, if there is something
            os.rename(source, target)  # noqa: PTH104 -- one call of the disk, like the others

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        with RECLAIMER.keeping(path):
            os.unlink(path)  # noqa: PTH108

    def listdir(self, directory: Path) -> list[str]:
        return os.listdir(directory)  # noqa: PTH208

    def free_bytes(self, directory: Path) -> int:
        stat = os.statvfs(directory)
        return stat.f_bavail * stat.f_frsize

    def settle(self) -> None:
        """Every sync has waited."""

    def directory_time(self, directory: Path) -> int:
        try:
            return os.stat(directory).st_mtime_ns  # noqa: PTH116
        except FileNotFoundError:
            return -1


REAL_DISK = RealDisk()


def is_full(error: OSError) -> bool:
    """The disk, the quota or the file size limit is used up; nothing is broken."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_all(disk: Disk, fd: int, buffers: Sequence[Buffer], position: int) -> int:
    """Every byte of `buffers` from `position` on, in as few calls as the kernel allows; returns the end position."""
    if len(buffers) > BUFFERS_MAX:
        buffers = [b"".join(buffers)]
    end = position + sum(map(len, buffers))
    position += disk.pwritev(fd, buffers, position)
    if position < end:  # a short write: a signal, a limit, or a disk that is filling up
        rest = memoryview(b"".join(buffers))
        while position < end:
            written = disk.pwritev(fd, [rest[position - end :]], position)
            if written <= 0:
                raise OSError(errno.EIO, "the disk took no more bytes and gave no reason")
            position += written
    return end


def read_all(disk: Readable, fd: int, position: int, size: int) -> bytes:
    """Exactly `size` bytes unless the file ends before."""
    data = disk.pread(fd, size, position)
    while len(data) < size:
        more = disk.pread(fd, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def read_stretch(disk: Readable, fd: int, position: int, size: int) -> bytes | memoryview:
    """The same; a large stretch into memory that the next large one gets."""
    own = isinstance(disk, RealDisk) and disk.flushable  # other disks have descriptors that are not the system's
    if size <= PAGED_BYTES_MIN or not own:
        return read_all(disk, fd, position, size)
    room = Block(size).view()
    return room[: read_steadily_into(fd, room, position)].toreadonly()

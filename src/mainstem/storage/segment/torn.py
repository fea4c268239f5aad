"""What a crash left behind the last whole frame is taken out of the log, but kept for who wants to look at it."""

from __future__ import annotations

from pathlib import Path

from mainstem.storage.disk import Disk, is_full, read_all, write_all
from mainstem.storage.segment.room import ZEROS_BYTES_MAX
from mainstem.storage.segment.segment import INDEX_SUFFIX
from mainstem.storage.state_file import remove

TORN_SUFFIX = ".torn"
TORN_FILES_MAX = 16  # of a log; the oldest by name go first
COPY_BYTES = 4 << 20
ZEROS_AT_ONCE = 1 << 20  # compared in less than a slice: others wait for the interpreter meanwhile


def cut_file(disk: Disk, path: Path, size: int) -> None:
    """End the file at `size`; what lay behind goes to `<name>.<size>.torn`, unless it is only zeros."""
    fd = disk.open(path)
    try:
        end = disk.size(fd)
        if not only_zeros(disk, fd, size, end):
            _copy(disk, fd, size, end, path.with_name(f"{path.name}.{size}{TORN_SUFFIX}"))
        disk.truncate(fd, size)
        disk.fsync(fd)
    finally:
        disk.close(fd)
    forget_torn(disk, path.parent, TORN_FILES_MAX)


def cut_zeros(disk: Disk, path: Path, size: int) -> bool:
    """End the file at `size` if what lies behind is room that was ahead of a writer: a power cut can bring it back."""
    fd = disk.open(path)
    try:
        end = disk.size(fd)
        if not 0 <= end - size <= ZEROS_BYTES_MAX or not only_zeros(disk, fd, size, end):
            return False
        disk.truncate(fd, size)
        return True
    finally:
        disk.close(fd)


def only_zeros(disk: Disk, fd: int, begin: int, end: int) -> bool:
    zeros = bytes(min(ZEROS_AT_ONCE, max(end - begin, 0)))
    for at in range(begin, end, ZEROS_AT_ONCE):
        piece = read_all(disk, fd, at, ZEROS_AT_ONCE)
        if piece != (zeros if len(piece) == len(zeros) else bytes(len(piece))):
            return False
    return True


def put_aside(disk: Disk, path: Path) -> None:
    """Take a whole file out of the log."""
    remove(disk, path.with_suffix(INDEX_SUFFIX))
    disk.rename(path, path.with_name(f"{path.name}.0{TORN_SUFFIX}"))
    forget_torn(disk, path.parent, TORN_FILES_MAX)


def forget_torn(disk: Disk, directory: Path, keep: int = 0) -> None:
    """Remove what was kept aside, the oldest first."""
    torn = sorted(name for name in disk.listdir(directory) if name.endswith(TORN_SUFFIX))
    for name in torn[: max(len(torn) - keep, 0)]:
        remove(disk, directory / name)


def _copy(disk: Disk, fd: int, begin: int, end: int, target: Path) -> None:
    remove(disk, target)
    copy = disk.open(target, create=True)
    try:
        for at in range(begin, end, COPY_BYTES):
            write_all(disk, copy, [read_all(disk, fd, at, min(COPY_BYTES, end - at))], at - begin)
        disk.fsync(copy)
    except OSError as error:
        if not is_full(error):
            raise
        remove(disk, target)  # starting matters more than a curiosity that was never acknowledged
    finally:
        disk.close(copy)

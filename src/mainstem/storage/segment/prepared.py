"""Frames that are written before their place in the log is known: large ones, whose bytes would keep all others waiting.

    in a thread     the frame's bytes go to a file beside the segments, and are synced
    on the loop     offset and stamp are given; the heads are written over, and the file becomes the log's next segment

Until then it is no part of the log: a start removes what is left of it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path

from mainstem.storage.disk import Disk, RealDisk, write_all
from mainstem.storage.engine import Buffer
from mainstem.storage.segment.segment import LOG_SUFFIX
from mainstem.storage.state_file import TEMPORARY, remove
from mainstem.storage.steady import write_steadily

_numbers = itertools.count()


def write_synced(disk: Disk, path: Path, data: Sequence[Buffer]) -> None:
    """A whole file, in place of what a crash may have left there; nothing of it stays if that fails."""
    remove(disk, path)
    fd = disk.open(path, create=True)
    try:
        if isinstance(disk, RealDisk) and disk.flushable:  # simulated ones have descriptors of their own
            disk.allocate(fd, 0, sum(map(len, data)))  # in few pieces of the disk, though it is written in many
            write_steadily(fd, data)
        else:
            write_all(disk, fd, data, 0)
        disk.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            remove(disk, path)
        raise
    finally:
        disk.close(fd)


def prepare(disk: Disk, directory: Path, data: Sequence[Buffer]) -> Path:
    path = directory / f"prepared-{next(_numbers)}{LOG_SUFFIX}{TEMPORARY}"
    write_synced(disk, path, data)
    return path


def finish(disk: Disk, prepared: Path, front: Sequence[Buffer], path: Path) -> None:
    """What its place decides is written over what stood for it; the next sync makes this durable, and the name."""
    fd = disk.open(prepared)
    try:
        write_all(disk, fd, front, 0)
    finally:
        disk.close(fd)
    disk.rename(prepared, path)

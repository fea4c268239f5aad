"""Room kept on the disk for the moment when there is none: a file of blocks that hold nothing.

    <data>/ballast      min(16 MiB, 1/64 of the disk); made while there is plenty of room, removed when there is none

Deleting a topic frees a full disk, but is a write itself, and so is a start. Both find room once the ballast is thrown
off. What would only fill the disk further (new topics, queues, users) is refused before the ballast is needed.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from mainstem.model.errors import DiskFull
from mainstem.storage.disk import REAL_DISK, is_full

logger = logging.getLogger("mainstem.storage")

NAME = "ballast"
BYTES_MAX = 16 << 20
DISK_SHARE = 64
START_BYTES_MIN = 128 << 10
PLENTY = 4  # times its size must be free before it is made (again)
FIX = "free space there, or shorten retention: mainstem topic alter TOPIC --set retention_ms=..., mainstem topic delete"


class Ballast:
    """Any thread may call it."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._path = directory, directory / NAME

    @property
    def size_bytes(self) -> int:
        """With less free than this nothing new is taken, so that its room stays for those it is meant for."""
        return self._measure()[0]

    def check(self) -> None:
        """Raises DiskFull where the disk has no room for anything new."""
        size, free = self._measure()
        if free < size:
            raise DiskFull(f"{self._directory} has {free >> 10} KiB free, too little for anything new", fix=FIX)

    def give_up(self) -> bool:
        """Something must be written and the disk is full: whether there is more room now."""
        try:
            self._path.unlink()
        except OSError:
            return False
        logger.warning("%s is full: %s is removed, for what must be written", self._directory, self._path.name)
        return True

    def make_room(self) -> None:
        """Before a start or a stop, which write a little for every log."""
        size, free = self._measure()
        if free < size:
            self.give_up()

    def check_start(self) -> None:
        """Raises DiskFull where not even a start finds room: SQLite would be killed by a page that cannot be had."""
        self.make_room()
        _, free = self._measure()
        if free >= START_BYTES_MIN or self._path.exists():
            return
        if not self._allocate(START_BYTES_MIN):  # root may have more than what is said to be free
            raise DiskFull(
                f"{self._directory} has {free >> 10} KiB free; a start needs {START_BYTES_MIN >> 10} KiB",
                fix=f"free space on that disk: df -h {self._directory}",
            )
        self._path.unlink()

    def keep(self) -> None:
        """Make it, unless it is there or room is short."""
        if not self._path.exists():
            size, free = self._measure()
            if free >= size * PLENTY:
                self._allocate(size)

    def keep_rest(self) -> None:
        """Of what little room is left after a stop, for the next start."""
        if not self._path.exists():
            size, _ = self._measure()
            any(self._allocate(size * part // 4) for part in (4, 3, 2, 1))

    def _allocate(self, size: int) -> bool:
        try:
            fd = REAL_DISK.open(self._path, create=True)
            try:
                kept = REAL_DISK.allocate(fd, 0, size)
            finally:
                REAL_DISK.close(fd)
            if not kept:  # no room after all, or a file system that cannot
                self._path.unlink()
        except OSError as error:
            if not is_full(error):
                raise
            return False
        return kept

    def _measure(self) -> tuple[int, int]:
        """How large it shall be, and what is free on its disk."""
        disk = os.statvfs(self._directory)
        size = min(BYTES_MAX, disk.f_blocks * disk.f_frsize // DISK_SHARE)
        return size, disk.f_bavail * disk.f_frsize

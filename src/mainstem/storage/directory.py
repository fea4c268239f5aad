"""The data directory: ours alone, for the owner only, used by one process, of a format we know.

<data>/mainstem.format   "mainstem data 2": written first and synced, so that what is there is known to be ours
<data>/before-2/         what format 1 had of metadata and state before it was taken over; for the way back by hand
<data>/lock              held with flock while a process uses the directory; holds its process id
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

from mainstem.model.errors import ConfigError
from mainstem.storage.ballast import Ballast
from mainstem.storage.disk import REAL_DISK, write_all
from mainstem.storage.state_file import TEMPORARY, remove

FORMAT_FILE, LOCK_FILE = "mainstem.format", "lock"
BEFORE, SNAPSHOT_1 = "before-2", "state.snapshot"
FORMAT_NAME, FORMAT_VERSION = "mainstem data", 2
NEWER, LOCKED, FOREIGN = "MS-4007", "MS-4008", "MS-4009"
OTHERS = 0o077


class DataDirectory:
    """Claimed from `__init__` until `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        try:
            if self.path.is_dir():
                Ballast(self.path).make_room()
            self._prepare()
            self._lock = self._take_lock()
        except OSError as error:
            raise ConfigError(
                f"the data directory {self.path} cannot be used: {error.strerror}",
                fix="give another one: --data DIR",
                code=FOREIGN,
            ) from error

    def release(self) -> None:
        os.close(self._lock)

    def _prepare(self) -> None:
        REAL_DISK.make_dir(self.path)
        if not (self.path / FORMAT_FILE).exists():
            unknown = {entry.name for entry in self.path.iterdir()} - {LOCK_FILE, FORMAT_FILE + TEMPORARY}
            if unknown:
                raise ConfigError(
                    f"{self.path} is not empty ({min(unknown)}) and was not made by Mainstem",
                    fix="give an empty directory: --data DIR",
                    code=FOREIGN,
                )
            self.path.chmod(0o700)
            write_format(self.path)
        if self.path.stat().st_mode & OTHERS:
            raise ConfigError(f"{self.path} is open to other users", fix=f"chmod 700 {self.path}", code=FOREIGN)
        check_format(self.path)

    def _take_lock(self) -> int:
        lock = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(lock, 32).decode(errors="replace").strip()
            os.close(lock)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise ConfigError(
                f"{self.path} is in use by process {holder or '(unknown)'}",
                fix=f"stop it (kill {holder}), or give another directory: --data DIR",
                code=LOCKED,
            ) from None
        os.ftruncate(lock, os.pwrite(lock, f"{os.getpid()}\n".encode(), 0))  # in this order: it fits on a full disk
        return lock


def keep_before_upgrade(path: Path) -> None:
    """Before anything of a data directory of format 1 is changed: its metadata and its state are copied beside it."""
    kept, snapshot = path / BEFORE, path / SNAPSHOT_1
    if kept.exists() or not snapshot.exists():
        return
    unfinished = path / (BEFORE + TEMPORARY)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    for source in (snapshot, *path.glob("metadata.sqlite*")):
        shutil.copyfile(source, unfinished / source.name)
        fd = REAL_DISK.open(unfinished / source.name)
        try:
            REAL_DISK.fsync(fd)
        finally:
            REAL_DISK.close(fd)
    REAL_DISK.fsync_dir(unfinished)
    REAL_DISK.rename(unfinished, kept)
    REAL_DISK.fsync_dir(path)


def raise_format(path: Path) -> None:
    """The directory holds state that older versions do not know; one that is not marked at all stays so."""
    mark = path / FORMAT_FILE
    if mark.is_file() and mark.read_text(errors="replace").strip() != f"{FORMAT_NAME} {FORMAT_VERSION}":
        write_format(path)


def write_format(path: Path, version: int = FORMAT_VERSION) -> None:
    """Durable before anything else is: logs without it would not be known as ours after a power cut."""
    temporary = path / (FORMAT_FILE + TEMPORARY)
    remove(REAL_DISK, temporary)
    fd = REAL_DISK.open(temporary, create=True)
    try:
        write_all(REAL_DISK, fd, [f"{FORMAT_NAME} {version}\n".encode()], 0)
        REAL_DISK.fsync(fd)
    finally:
        REAL_DISK.close(fd)
    REAL_DISK.rename(temporary, path / FORMAT_FILE)
    REAL_DISK.fsync_dir(path)


def check_format(path: Path) -> None:
    """ConfigError unless the directory is one of ours and not of a newer Mainstem."""
    mark = path / FORMAT_FILE
    if not mark.is_file():
        raise ConfigError(f"{path} is not a Mainstem data directory", fix="name one: --data DIR", code=FOREIGN)
    name, _, version = mark.read_text(errors="replace").strip().rpartition(" ")
    if name != FORMAT_NAME or not version.isdigit():
        raise ConfigError(
            f"{mark} does not read like Mainstem's", fix="give another directory: --data DIR", code=FOREIGN
        )
    if int(version) > FORMAT_VERSION:
        raise ConfigError(
            f"{path} has format {version}; this Mainstem knows formats up to {FORMAT_VERSION}",
            fix="start it with the Mainstem that wrote it, or a newer one",
            code=NEWER,
        )

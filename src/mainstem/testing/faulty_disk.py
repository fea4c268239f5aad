"""A disk in memory that fails as real ones do, decided by a seed: the same seed fails the same way again.

It keeps two states: what a process sees, and what a power cut leaves. Between them lie the writes of each file and the
changes of names of each directory since the last sync. At a power cut of each file

    some first writes have arrived; of the others any 512-byte sectors may have, in any order, one perhaps cut in
    two; a file made longer by a later sector shows zeros where an earlier one is missing

and of each directory some first changes of names have arrived. A failed fsync drops what it should have written, as
Linux does: a second one would succeed and mean nothing.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

from mainstem.storage.engine import Buffer

SECTOR_BYTES = 512
UNLIMITED = 1 << 40


class PowerCut(BaseException):
    """The machine stops here. Not an Exception: nothing in the code under test can handle it."""


_NameChange = tuple[Path, Path, "_File | None"]  # the old name, the new one, and what bears it now


class _File:
    """One inode: the bytes seen, the bytes durable, and what was done to it in between."""

    __slots__ = ("durable", "pending", "seen")

    def __init__(self) -> None:
        self.seen = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []  # (position, data), or (size, None) for a truncation

    def sync(self) -> None:
        if self.pending:
            self.durable = bytearray(self.seen)
            self.pending.clear()

    def cut(self, rng: random.Random) -> None:
        """What of the pending writes reached the platter."""
        arrived = rng.randint(0, len(self.pending)) if rng.random() < 0.5 else 0
        chance = rng.choice((0.0, 0.5, 0.9))
        for number, (position, data) in enumerate(self.pending):
            if data is None:
                if number < arrived or rng.random() < chance:
                    _resize(self.durable, position)
            elif number < arrived:
                _write(self.durable, position, data)
            else:
                self._write_some_sectors(rng, chance, position, data)
        self.pending.clear()
        self.seen = bytearray(self.durable)

    def _write_some_sectors(self, rng: random.Random, chance: float, position: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            size = min(SECTOR_BYTES - (position + at) % SECTOR_BYTES, len(data) - at)
            if rng.random() < chance:
                torn = rng.randint(0, size) if rng.random() < 0.1 else size
                _write(self.durable, position + at, data[at : at + torn])
            at += size


class FaultyDisk:
    """A `mainstem.storage.disk.Disk`. Not thread-safe: a simulation is one thread."""

    def __init__(self, seed: int, *, capacity_bytes: int = UNLIMITED, short_write_chance: float = 0.0) -> None:
        self._rng = random.Random(seed)
        self.flushable = False  # a simulation that has a flusher of its own says so
        self._capacity_bytes = capacity_bytes
        self._short_write_chance = short_write_chance
        self._names: dict[Path, _File] = {}
        self._durable_names: dict[Path, _File] = {}
        self._name_changes: dict[Path, list[_NameChange]] = {}
        self._fds: dict[int, _File] = {}
        self._directories: dict[int, Path] = {}
        self._next_fd = 3
        self._operations_left = -1
        self._cut = False
        self._faults: dict[str, tuple[int, int, int]] = {}  # operation: errno, calls to let pass, calls to fail
        self.operations = 0

    # What a test does to it

    def cut_power_after(self, operations: int) -> None:
        """Raise PowerCut in the middle of what runs then; `restart` makes the disk usable again."""
        self._operations_left = operations

    @property
    def is_cut(self) -> bool:
        """The power is gone: every operation from here on raises PowerCut."""
        return self._operations_left == 0 and self._cut

    def restart(self) -> None:
        """The power comes back: only what was durable is there, and whatever else happened to arrive."""
        for changes in self._name_changes.values():
            for change in changes[: self._rng.randint(0, len(changes))]:
                self._change_durably(*change)
        self._name_changes.clear()
        for file in {id(file): file for file in self._durable_names.values()}.values():
            file.cut(self._rng)
        self._names = dict(self._durable_names)
        self.kill()

    def kill(self) -> None:
        """The process dies; the machine does not. Everything written stays."""
        self._fds.clear()
        self._directories.clear()
        self._operations_left = -1
        self._cut = False

    def fail(self, operation: str, error: int, *, after: int = 0, times: int = 1) -> None:
        """Let `after` more calls of a method pass, then fail `times` of them with `error`."""
        self._faults[operation] = (error, after, times)

    def flip_bit(self, path: Path, position: int, bit: int) -> None:
        for content in (self._names[path].seen, self._names[path].durable):
            if position < len(content):
                content[position] ^= 1 << bit

    def content(self, path: Path) -> bytes:
        return bytes(self._names[path].seen)

    @property
    def paths(self) -> list[Path]:
        return sorted(self._names)

    # What the code under test does with it

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        self._step("open")
        if create:
            if path in self._names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            self._names[path] = _File()
            self._changed(path, path, self._names[path])
        elif path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._next_fd += 1
        self._fds[self._next_fd] = self._names[path]
        return self._next_fd

    def close(self, fd: int) -> None:
        self._fds.pop(fd, None)
        self._directories.pop(fd, None)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        file, data = self._fds[fd], b"".join(buffers)
        try:
            self._step("pwritev")
        except PowerCut:
            self._put(file, position, data[: self._rng.randint(0, len(data))])
            raise
        if self._capacity_bytes < UNLIMITED and _blocks(position + len(data)) > (
            room := self.free_bytes(Path()) + _blocks(len(file.seen))
        ):
            data = data[: max(room - position, 0)]
            if not data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif len(data) > 1 and self._rng.random() < self._short_write_chance:
            data = data[: self._rng.randint(1, len(data) - 1)]
        self._put(file, position, data)
        return len(data)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._step("pread")
        return bytes(self._fds[fd].seen[position : position + size])

    def pread_into(self, fd: int, buffer: memoryview, position: int) -> int:
        data = self.pread(fd, len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def size(self, fd: int) -> int:
        return len(self._fds[fd].seen)

    def truncate(self, fd: int, size: int) -> None:
        self._step("truncate")
        file = self._fds[fd]
        if size != len(file.seen):
            _resize(file.seen, size)
            file.pending.append((size, None))

    def allocate(self, fd: int, position: int, size: int) -> bool:
        self._step("allocate")
        return fd in self._fds and position >= 0 and size > 0

    def fdatasync(self, fd: int) -> None:
        try:
            self._step("fdatasync")
        except OSError:
            self._fds[fd].pending.clear()  # the pages are clean now, and lost
            raise
        self._fds[fd].sync()

    def fsync(self, fd: int) -> None:
        if fd in self._directories:
            self.fsync_dir(self._directories[fd])
            return
        try:
            self._step("fsync")
        except OSError:
            self._fds[fd].pending.clear()
            raise
        self._fds[fd].sync()

    def open_dir(self, directory: Path) -> int:
        self._step("open_dir")
        self._next_fd += 1
        self._directories[self._next_fd] = directory
        return self._next_fd

    def fsync_dir(self, directory: Path) -> None:
        self._step("fsync_dir")
        for change in self._name_changes.pop(directory, []):
            self._change_durably(*change)

    def make_dir(self, directory: Path) -> None:
        """Directories are there when they are asked for."""

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        if source not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
        self._names[target] = self._names.pop(source)
        self._changed(source, target, self._names[target])

    def link(self, source: Path, target: Path) -> None:
        self._step("link")
        if target in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        self._names[target] = self._names[source]
        self._changed(target, target, self._names[target])

    def unlink(self, path: Path) -> None:
        self._step("unlink")
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        del self._names[path]
        self._changed(path, path, None)

    def listdir(self, directory: Path) -> list[str]:
        self._step("listdir")
        names = [path.name for path in self._names if path.parent == directory]
        self._rng.shuffle(names)
        return names

    def free_bytes(self, directory: Path) -> int:
        if self._capacity_bytes == UNLIMITED:  # asked in every step: no need to look at all files
            return UNLIMITED
        return self._capacity_bytes - sum(_blocks(len(file.seen)) for file in self._names.values())

    def settle(self) -> None: ...

    def directory_time(self, directory: Path) -> int:
        """Always the same: what a broker finds out by it alone is not simulated."""
        return 0

    # Inside

    def _step(self, operation: str) -> None:
        self.operations += 1
        if self._operations_left == 0:
            self._cut = True
            raise PowerCut(operation)
        self._operations_left -= 1
        error, after, times = self._faults.get(operation, (0, 0, 0))
        if times:
            self._faults[operation] = (error, after - 1, times) if after else (error, 0, times - 1)
            if not after:
                raise OSError(error, os.strerror(error))

    def _put(self, file: _File, position: int, data: bytes) -> None:
        _write(file.seen, position, data)
        file.pending.append((position, data))

    def _changed(self, old: Path, new: Path, file: _File | None) -> None:
        self._name_changes.setdefault(old.parent, []).append((old, new, file))

    def _change_durably(self, old: Path, new: Path, file: _File | None) -> None:
        self._durable_names.pop(old, None)
        if file is not None:
            self._durable_names[new] = file


def _blocks(size: int) -> int:
    """What a file of that size takes on the disk."""
    return -(-size // SECTOR_BYTES) * SECTOR_BYTES


def _write(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))

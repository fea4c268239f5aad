"""The disk of a cell: files lie on this machine, what is durable lies in the cell's write-ahead log.

It keeps the promise of `storage/disk.py` with another medium. Every change is done to the local file, which is a cache,
and recorded in one order. A sync of a segment waits until everything recorded before it is committed; so acks, which follow
syncs, follow commits. Other files (reservations, marks, snapshots) are put in place by a rename, which records the whole
file as one change; their syncs wait for nothing, as whoever relies on them later relies on a later change of the order.
Who relies on such a file without a later change, as deliveries do on the mark that the cell is in use, waits by `settle`.

A SQLite file, the registry of objects, is recorded as the statements of its transactions.

Not recorded: files on their way (`.new`), predecessors (`.previous`), what was cut off (`.torn`), and what is derived from
segments (`.index`). A file larger than INLINE_BYTES_MAX goes to the object store and the log names the object; only threads
write such files.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from mainstem.cluster.changes import DELETE, PUT, SQL, STORED, TRUNCATE, WRITE, File, head_of
from mainstem.cluster.objects import CellObjects
from mainstem.cluster.wal import CellWal
from mainstem.storage.disk import RealDisk
from mainstem.storage.engine import Buffer
from mainstem.storage.segment.segment import parse_name
from mainstem.storage.tier.registry import Reading

INLINE_BYTES_MAX = 64 << 10
_NOT_RECORDED = re.compile(r".*\.(new|previous|torn|index)")


def is_recorded(name: str) -> bool:
    return _NOT_RECORDED.fullmatch(name) is None


class CellDisk(RealDisk):
    """`files` is what replaying the log left under `root`. Any thread may call."""

    flushable = False  # syncs are ours

    def __init__(self, root: Path, wal: CellWal, objects: CellObjects, files: dict[str, File]) -> None:
        super().__init__()
        self._root, self._wal, self._objects = str(root) + "/", wal, objects
        self._segments: dict[int, tuple[str, bytes]] = {}  # descriptor → path of a segment that may be written
        self._lock = threading.Lock()  # what is in `files` is what is recorded
        self._databases: dict[str, Reading] = {}
        self.files = files

    def capture(self) -> tuple[int, dict[str, File]]:
        """A barrier of the log, and every file as it is there."""
        taken: dict[str, File] = {}

        def note() -> None:
            taken.update({path: one.copy() for path, one in self.files.items()})

        with ExitStack() as held:
            open_now = {name: held.enter_context(reading()) for name, reading in self._databases.items()}
            with self._lock:
                barrier = self._wal.barrier(note)
            for name, db in open_now.items():
                copy = db.serialize()
                taken[name] = File(len(copy), copy)
        return barrier, taken

    # -- databases

    def attach_database(self, path: Path, reading: Reading) -> None:
        name = self._name(path)
        assert name is not None
        self._databases[name] = reading

    def record_statements(self, path: Path, statements: list[str]) -> int:
        name, kept = self._name(path), [one for one in statements if not one.startswith("SELECT")]
        assert name is not None
        data = json.dumps(kept).encode()
        with self._lock:
            return self._wal.record(head_of(SQL, name.encode(), 0, len(data)), [data])

    def wait_recorded(self, position: int) -> None:
        self._wal.wait(position)

    def note_stored(self, path: str, file: File) -> None:
        """An image put this file, as it was captured, into the store: the next one need not, unless it changed since. One
        that was found shorter is being cut, which is recorded in a moment: the object is not what the log knows."""
        with self._lock:
            known = self.files.get(path)
            if known is not None and (known.version, known.size) == (file.version, file.size):
                known.key = file.key

    def forget_removed(self, path: str) -> None:
        """A log's directory is removed as a whole, once the metadata does not name it: no change says so."""
        if not Path(self._root, path).parent.exists():
            with self._lock:
                directory = path.rpartition("/")[0] + "/"
                for name in [name for name in self.files if name.startswith(directory)]:
                    del self.files[name]

    # -- descriptors

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        fd = super().open(path, create=create, read_only=read_only)
        if not read_only and parse_name(path.name) is not None:
            name = self._name(path)
            if name is not None:
                self._segments[fd] = name, name.encode()
        return fd

    def close(self, fd: int) -> None:
        self._segments.pop(fd, None)
        super().close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        written = super().pwritev(fd, buffers, position)
        found = self._segments.get(fd)
        if found is not None and written:
            data: Sequence[Buffer] = buffers
            if written != sum(map(len, buffers)):
                data = [b"".join(buffers)[:written]]
            self._record_write(found, position, written, data)
        return written

    def _record_write(self, found: tuple[str, bytes], position: int, size: int, data: Sequence[Buffer]) -> None:
        with self._lock:
            known = self.files.get(found[0])
            if known is None:
                known = self.files[found[0]] = File(0)
            known.grow(position + size)
            self._wal.record(head_of(WRITE, found[1], position, size), data)

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        found = self._segments.get(fd)
        if found is not None:
            with self._lock:
                known = self.files.get(found[0])
                if known is None or known.size != size:
                    self.files[found[0]] = File(size)
                    self._wal.record(head_of(TRUNCATE, found[1], size))

    def allocate(self, fd: int, position: int, size: int) -> bool:
        return False

    def free_bytes(self, directory: Path) -> int:
        """Nothing is prepared ahead of a writer: that only helps syncs of a disk."""
        return 0

    def fdatasync(self, fd: int) -> None:
        if fd in self._segments:
            self._wal.wait(self._wal.recorded)

    def fsync(self, fd: int) -> None:
        self.fdatasync(fd)

    def fsync_dir(self, directory: Path) -> None:
        """Names are recorded like everything else."""

    def settle(self) -> None:
        self._wal.wait(self._wal.recorded)

    # -- names

    def rename(self, source: Path, target: Path) -> None:
        name = self._name(target)
        if name is None or not is_recorded(target.name):  # its place is taken by what is renamed to it next
            super().rename(source, target)
            if parse_name(source.name) is not None:  # a segment put aside
                self._forget(self._name(source))
            return
        data = source.read_bytes()
        key = self._objects.put("files", data) if len(data) > INLINE_BYTES_MAX else ""
        with self._lock:
            super().rename(source, target)
            if key:
                self.files[name] = File(len(data), key=key)
                stored = key.encode()
                self._wal.record(head_of(STORED, name.encode(), len(data), len(stored)), [stored])
            else:
                self.files[name] = File(len(data), data)
                self._wal.record(head_of(PUT, name.encode(), 0, len(data)), [data])

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._forget(self._name(path))

    def _forget(self, name: str | None) -> None:
        with self._lock:
            if name is not None and self.files.pop(name, None) is not None:
                self._wal.record(head_of(DELETE, name.encode()))

    def _name(self, path: Path) -> str | None:
        text = os.fspath(path)
        return text[len(self._root) :] if text.startswith(self._root) else None

"""Frames as values in a RocksDB of their own, one database per log.

    i                               log id
    f <u64 base offset>             a frame
    r <u64 part> <u32 generation> <u64 base offset>    a frame of a part that was rewritten
    p <u64 part>                    a sealed part: end offset, first stamp, last stamp, bytes, generation
    e                               end offset and last stamp, written where frames alone would not tell them
    c                               closed cleanly; removed, durably, before the next change

Numbers are big-endian, so that keys sort as offsets do. `write` of the library holds the GIL for the whole call, and
`flush_wal(True)` does not: so appends go in batches of at most 256 KiB without a sync, and one flush of the write-ahead
log makes all of them durable, in order. Values are never pickled (`raw_mode`).
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

from rocksdict import (
    AccessType,
    Checkpoint,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from mainstem.codec.batch import frame_heads, read_frame_head
from mainstem.model.errors import DamagedLog, DiskFull, InvalidArgument, StorageFault
from mainstem.storage.disk import REAL_DISK
from mainstem.storage.engine import Buffer, FrameRef, Part, Slice, Stat
from mainstem.storage.health import Health

NAME = "rocksdb"
PART_BYTES = 64 << 20
WRITE_BYTES_MAX = 256 << 10
WRITE_BUFFER_BYTES = 16 << 20
WAL_BYTES_MAX = 256 << 20
FILES_MAX = 256
FREE_BYTES_MIN = 64 << 20  # RocksDB does not come back from a full disk by itself, so it never meets one
_U64 = struct.Struct(">Q")
_PART = struct.Struct(">QqqQI")
_END = struct.Struct(">Qq")
_CLEAN, _END_KEY, _ID = b"c", b"e", b"i"
_BASE_OFFSET = attrgetter("base_offset")
_FIRST_STAMP = attrgetter("first_stamp")


@dataclass(slots=True)
class _KeyRange:
    base_offset: int
    end_offset: int
    first_stamp: int = 0
    last_stamp: int = 0
    size: int = 0
    generation: int = 0
    sealed: bool = False

    @property
    def prefix(self) -> bytes:
        return b"r" + struct.pack(">QI", self.base_offset, self.generation) if self.generation else b"f"

    def key(self, offset: int) -> bytes:
        return self.prefix + _U64.pack(offset)

    def add(self, frame: FrameRef) -> None:
        if not self.size:
            self.first_stamp = frame.stamp
        self.size += frame.size
        self.last_stamp = frame.stamp
        self.end_offset = frame.base_offset + frame.count

    def pack(self) -> bytes:
        return _PART.pack(self.end_offset, self.first_stamp, self.last_stamp, self.size, self.generation)

    def part(self) -> Part:
        name = f"{self.base_offset:020d}"
        stamps = self.first_stamp, self.last_stamp
        return Part(name, self.generation, self.base_offset, self.end_offset, *stamps, self.size, self.sealed)


class RocksDbEngine:
    """See `mainstem.storage.engine.Engine`. Recovery and checksums are RocksDB's own; frames carry theirs besides."""

    is_local = True

    def __init__(self, directory: Path, log_id: int, *, part_bytes: int = PART_BYTES) -> None:
        self._directory, self._log_id, self._part_bytes = directory, log_id, part_bytes
        self._lock = threading.RLock()
        self._health = Health(directory)
        self._touched = False
        REAL_DISK.make_dir(directory)
        try:
            self._db = Rdict(str(directory / NAME), options=_options())
        except Exception as error:  # the library has no class of its own for this
            raise DamagedLog(
                f"{directory}: RocksDB does not open the log: {error}",
                fix=f"mainstem log repair --quarantine {directory}",
            ) from error
        unsynced = WriteOptions()
        unsynced.sync = False
        self._db.set_write_options(unsynced)
        REAL_DISK.fsync_dir(directory)
        self._parts: tuple[_KeyRange, ...] = ()
        self._end_offset = self._last_stamp = 0
        self._clean = False
        self._recover()
        self.durable_offset = self._end_offset

    # Writing

    def append(self, data: Sequence[Buffer], frames: Sequence[FrameRef]) -> None:
        assert frames[0].base_offset >= self._end_offset, "offsets never go back"
        size = sum(frame.size for frame in frames)
        with self._lock:
            self._check_room(size)
            self._touch()
            part = self._writable(frames[0].base_offset, size)
            whole = memoryview(bytes(data[0]) if len(data) == 1 else b"".join(data))
            self._write(self._puts(part, whole, frames))
            for frame in frames:
                part.add(frame)
            self._end_offset, self._last_stamp = part.end_offset, part.last_stamp

    def sync(self) -> None:
        with self._lock:
            self._health.check()
            end_offset = self._end_offset
        try:
            self._db.flush_wal(True)
        except Exception as error:
            self._break("cannot sync", error)
        self.durable_offset = end_offset

    def roll(self) -> None:
        with self._lock:
            self._health.check()
            if self._parts and not self._parts[-1].sealed and self._parts[-1].size:
                self._touch()
                self._seal(self._parts[-1])

    def trim(self, before_offset: int) -> int:
        with self._lock:
            self._health.check()
            dropped = [part for part in self._parts if part.sealed and part.end_offset <= before_offset]
            if dropped:
                self._touch()
                batch = _batch()
                batch.put(_END_KEY, _END.pack(self._end_offset, self._last_stamp))
                for part in dropped:
                    batch.delete_range(part.key(part.base_offset), part.key(part.end_offset))
                    batch.delete(b"p" + _U64.pack(part.base_offset))
                self._write([batch])
                self._parts = self._parts[len(dropped) :]
            return self._start_offset

    def replace(self, part: Part, frames: Sequence[Buffer]) -> None:
        with self._lock:
            self._health.check()
            old = next((p for p in self._parts if p.base_offset == part.base_offset), None)
            if old is None or not old.sealed or old.generation != part.generation:
                raise InvalidArgument(f"{part.name}: not a sealed part of this log (any more)")
            self._touch()
            new = _KeyRange(old.base_offset, old.end_offset, generation=old.generation + 1, sealed=True)
            self._write([_removal(new)])  # of a rewrite that a crash cut short
            for buffer in frames:
                refs = [FrameRef(h.base_offset, h.count, h.stamp, h.size) for h in frame_heads(buffer, self._log_id)]
                self._write(self._puts(new, memoryview(buffer), refs))
                for ref in refs:
                    new.add(ref)
            new.end_offset, new.first_stamp, new.last_stamp = old.end_offset, old.first_stamp, old.last_stamp
            batch = _removal(old)  # one batch swaps them: until then the old part stands
            batch.put(b"p" + _U64.pack(new.base_offset), new.pack())
            self._write([batch])
            self._parts = tuple(new if p is old else p for p in self._parts)

    # Reading

    def read(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        self._health.check()
        while True:
            parts = self._parts
            for part in parts[max(bisect_right(parts, offset, key=_BASE_OFFSET) - 1, 0) :]:
                if end_offset is not None and part.base_offset >= end_offset:
                    return None
                if offset < part.end_offset and (found := self._read_in(part, offset, bytes_max, end_offset)):
                    return found
            if parts is self._parts:  # else one was rewritten or trimmed under us: look again
                return None

    def read_now(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        return self.read(offset, bytes_max, end_offset)

    def find_stamp(self, stamp: int) -> int:
        self._health.check()
        parts = [part for part in self._parts if part.size]
        for part in reversed(parts[: bisect_right(parts, stamp, key=_FIRST_STAMP)]):
            found, low, high = -1, part.base_offset, part.end_offset
            while low < high:  # stamps grow with offsets
                middle = (low + high) // 2
                frame = next(self._frames(part, middle), None)
                if frame is None or frame[0].stamp > stamp:
                    high = middle
                else:
                    found, low = frame[0].base_offset, frame[0].base_offset + frame[0].count
            if found >= 0:
                return found
        return self._start_offset

    def stat(self) -> Stat:
        with self._lock:
            parts = tuple(part.part() for part in self._parts)
            size = sum(part.size_bytes for part in parts)
            ends = self._start_offset, self._end_offset
            return Stat(*ends, self._last_stamp, size, parts, path=None, clean=self._clean)

    def copy_to(self, directory: Path) -> None:
        """A consistent copy of the database in a new `directory`; tables are hard links where that can be."""
        with self._lock:
            self.sync()
            Checkpoint(self._db).create_checkpoint(str(directory / NAME))

    def close(self) -> None:
        with self._lock:
            if self._health.closed:
                return
            self._health.closed = True
            try:
                if self._health.fault is None and (self._touched or not self._clean):
                    self._db.put(_END_KEY, _END.pack(self._end_offset, self._last_stamp))
                    self._db.put(_CLEAN, b"")
                    self._db.flush_wal(True)
            except Exception as error:
                self._break("cannot close cleanly", error)
            finally:
                try:
                    self._db.close()
                except Exception as error:  # rocksdict has no class of its own for it
                    self._break("cannot close its files", error)

    # Inside

    @property
    def _start_offset(self) -> int:
        return self._parts[0].base_offset if self._parts else self._end_offset

    def _recover(self) -> None:
        """Sealed parts are listed; the one that was being written is put together from its frames."""
        stored_id = self._db.get(_ID)
        if stored_id is None:
            self._db.put(_ID, _U64.pack(self._log_id))
        elif stored_id != _U64.pack(self._log_id):
            raise StorageFault(f"{self._directory}: holds log {_U64.unpack(stored_id)[0]}, not log {self._log_id}")
        self._end_offset, self._last_stamp = _END.unpack(self._db.get(_END_KEY) or _END.pack(0, 0))
        self._clean = self._db.get(_CLEAN) is not None
        parts: list[_KeyRange] = []
        for key, value in _items(self._db, b"p", b"q"):
            part_end, first, last, size, generation = _PART.unpack(value)
            parts.append(_KeyRange(_U64.unpack(key[1:])[0], part_end, first, last, size, generation, sealed=True))
        end = parts[-1].end_offset if parts else 0
        active: _KeyRange | None = None
        for key, value in _items(self._db, b"f" + _U64.pack(end), b"g"):
            head = read_frame_head(value, 0, self._log_id)
            if active is None:
                active = _KeyRange(_U64.unpack(key[1:])[0], 0)
            active.add(FrameRef(head.base_offset, head.count, head.stamp, head.size))
        self._parts = (*parts, active) if active is not None else tuple(parts)
        if self._parts:
            self._end_offset = max(self._end_offset, self._parts[-1].end_offset)
            self._last_stamp = max(self._last_stamp, self._parts[-1].last_stamp)
        self._db.flush_wal(True)

    def _frames(self, part: _KeyRange, offset: int) -> Iterator[tuple[Any, bytes]]:
        """The frames of a part from the one that holds `offset`, or the next one stored."""
        first = part.key(part.base_offset)
        options = ReadOptions()
        options.set_iterate_upper_bound(part.key(part.end_offset))
        iterator = self._db.iter(options)
        # No lower bound: with one, a step back past it can show a deleted range as an empty value.
        iterator.seek_for_prev(part.key(max(offset, part.base_offset)))
        if not iterator.valid() or iterator.key() < first:
            iterator.seek(first)
        while iterator.valid():
            value = iterator.value()
            head = read_frame_head(value, 0, self._log_id)
            if head.base_offset + head.count > offset:
                yield head, value
            iterator.next()

    def _read_in(self, part: _KeyRange, offset: int, bytes_max: int, end_offset: int | None) -> Slice | None:
        values: list[bytes] = []
        size = base = end = 0
        for head, value in self._frames(part, offset):
            too_much = values and size + len(value) > bytes_max
            if too_much or (end_offset is not None and head.base_offset >= end_offset):
                break
            base = base if values else head.base_offset
            end = head.base_offset + head.count
            values.append(value)
            size += len(value)
        if not values:
            return None
        return Slice(memoryview(values[0] if len(values) == 1 else b"".join(values)), base, end)

    def _puts(self, part: _KeyRange, data: memoryview, frames: Sequence[FrameRef]) -> Iterator[WriteBatch]:
        batch, position = _batch(), 0
        for frame in frames:
            if batch.len() and batch.size_in_bytes() + frame.size > WRITE_BYTES_MAX:
                yield batch
                batch = _batch()
            batch.put(part.key(frame.base_offset), bytes(data[position : position + frame.size]))
            position += frame.size
        yield batch

    def _write(self, batches: Sequence[WriteBatch] | Iterator[WriteBatch]) -> None:
        try:
            for batch in batches:
                self._db.write(batch)
        except Exception as error:
            self._break("cannot write", error)

    def _writable(self, base_offset: int, size: int) -> _KeyRange:
        last = self._parts[-1] if self._parts else None
        if last is not None and not last.sealed:
            if last.size + size <= self._part_bytes:
                return last
            self._seal(last)
        part = _KeyRange(base_offset, base_offset)
        self._parts = (*self._parts, part)
        return part

    def _seal(self, part: _KeyRange) -> None:
        part.sealed = True
        batch = _batch()
        batch.put(b"p" + _U64.pack(part.base_offset), part.pack())
        self._write([batch])

    def _touch(self) -> None:
        """Before the first change: from now on a crash is an unclean stop, and must be known as one."""
        if not self._touched:
            self._health.check()
            self._call(lambda: self._db.delete(_CLEAN))
            self._call(lambda: self._db.flush_wal(True))
            self._touched = True

    def _call(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self._break("cannot write", error)

    def _check_room(self, size: int) -> None:
        self._health.check()
        free = REAL_DISK.free_bytes(self._directory)
        if free < size + FREE_BYTES_MIN:
            raise DiskFull(f"{self._directory}: {free} bytes are free, RocksDB may not use the last {FREE_BYTES_MIN}")

    def _break(self, what: str, error: Exception) -> NoReturn:
        self._health.fail(f"{self._directory}: {what}", error)


def stored_frames(directory: Path) -> Iterator[bytes]:
    """Every frame of the log, in order, of a running or stopped one; nothing is changed."""
    database = Rdict(str(directory / NAME), options=_options(), access_type=AccessType.read_only())
    parts = {key[1:]: _PART.unpack(value) for key, value in _items(database, b"p", b"q")}
    for base, (end, *_, generation) in sorted(parts.items()):
        part = _KeyRange(_U64.unpack(base)[0], end, generation=generation)
        yield from (value for _, value in _items(database, part.key(part.base_offset), part.key(part.end_offset)))
    open_from = max((part[0] for part in parts.values()), default=0)
    yield from (value for _, value in _items(database, b"f" + _U64.pack(open_from), b"g"))


def repair_database(directory: Path) -> None:
    Rdict.repair(str(directory / NAME), _options())


def _items(database: Rdict, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    iterator = database.iter(options)
    iterator.seek(begin)
    while iterator.valid():
        yield iterator.key(), iterator.value()
        iterator.next()


def _batch() -> WriteBatch:
    return WriteBatch(raw_mode=True)


def _removal(part: _KeyRange) -> WriteBatch:
    batch = _batch()
    batch.delete_range(part.key(part.base_offset), part.key(part.end_offset))
    return batch


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())  # damage before the tail is told
    options.set_max_total_wal_size(WAL_BYTES_MAX)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_open_files(FILES_MAX)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bytes_per_sync(1 << 20)
    options.set_wal_bytes_per_sync(1 << 20)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_max_background_jobs(2)
    return options

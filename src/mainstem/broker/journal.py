"""Durable small state: acks, offsets, session positions, retained pointers, decisions.

State is appended as state frames to the default stem, so that it shares the tick's write and the round's fdatasync with
the data it speaks of. A snapshot bounds what a start has to replay: it is taken between two ticks, holds everything
applied so far, and is put in place only once all of that is durable.

    state record:  key = kind 0x00 key,  value = the owner's bytes (null: forgotten)
    snapshot file: "MSSNAP1\\n", u64 log id, u64 offset, then per entry u32 kind+key length, u32 value length
                   (0xFFFFFFFF = null), the two; then crc32c of all before it. Big-endian. Replaced by rename.

The snapshot also says which log the journal lies in. It stays there for as long as the broker runs: when the defaults
change, and with them the default stem, a clean stop moves it by naming the new one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from mainstem.codec.batch import FRAME_HEAD_SIZE, KIND_STATE, crc32c, decode_batch, verify_frame
from mainstem.log.gather import Ticket
from mainstem.log.log import Log
from mainstem.model.clock import Clock
from mainstem.model.errors import DiskFull, StorageFault
from mainstem.storage.disk import is_full

logger = logging.getLogger("mainstem.broker")

MAGIC = b"MSSNAP1\n"
HEAD = struct.Struct(">QQ")
NULL = 0xFFFFFFFF
SNAPSHOT_EVERY_BYTES = 64 << 20
READ_BYTES = 4 << 20
INFLATED_BYTES_MAX = 64 << 20


class Owner(NamedTuple):
    apply: Callable[[bytes, bytes | None], None]
    dump: Callable[[], Iterable[tuple[bytes, bytes]]]


class StateKeeper(Protocol):
    """What those who keep small durable state need of the journal."""

    def register(
        self,
        kind: str,
        apply: Callable[[bytes, bytes | None], None],
        dump: Callable[[], Iterable[tuple[bytes, bytes]]],
    ) -> None: ...

    def put(self, kind: str, key: bytes, value: bytes | None) -> Ticket: ...


class Journal:
    def __init__(self, stem: Log, path: Path, clock: Clock, logs: Mapping[int, Log] | None = None) -> None:
        """`stem` is the default one, where a new journal begins; `logs` are those an older one may lie in."""
        self.snapshot_offset = 0  # state frames below it are in the snapshot
        self._path, self._temporary = path, path.with_suffix(".new")
        self._data = path.read_bytes() if path.exists() else None
        self._next_stem = stem
        self.stem = stem
        if self._data is not None:
            self.stem = self._find_stem({stem.id: stem, **(logs or {})})
        self._clock = clock
        self._owners: dict[str, Owner] = {}
        self._unknown: dict[bytes, bytes] = {}
        self._put_since_snapshot = 0
        self._snapshot_running = False
        self._storing = threading.Lock()
        self._closed = False

    def register(
        self,
        kind: str,
        apply: Callable[[bytes, bytes | None], None],
        dump: Callable[[], Iterable[tuple[bytes, bytes]]],
    ) -> None:
        """`apply` is called for each entry in order while recovering; `dump` must yield what `apply` would rebuild."""
        assert kind not in self._owners and "\0" not in kind
        self._owners[kind] = Owner(apply, dump)

    def put(self, kind: str, key: bytes, value: bytes | None) -> Ticket:
        """Append one entry; its ticket is released once it is durable."""
        gather = self.stem.state()
        gather.add_state(kind.encode() + b"\0" + key, value, self._clock.now_ns() // 1_000_000)
        self._put_since_snapshot += len(key) + len(value or b"") + 32
        return gather.ticket

    # -- recovery --------------------------------------------------------------------------------------------------

    def recover(self) -> int:
        """Apply the snapshot, then every state frame after it; returns how many entries were applied."""
        if self._data is None:  # from now on it is known where the journal lies
            self._write(_sealed([_head(self.stem.id, 0)]))
        count = self._load_snapshot()
        offset = self.snapshot_offset  # not the log's start, which is that of streams
        while (piece := self.stem.read(offset, READ_BYTES)) is not None:
            count += self._replay(piece.data)
            offset = piece.end_offset
        return count

    def _replay(self, data: memoryview) -> int:
        at = count = 0
        while at < len(data):
            head = verify_frame(data, at, self.stem.id)
            batch = data[at + FRAME_HEAD_SIZE : at + head.size]
            at += head.size
            if head.kind != KIND_STATE or head.base_offset + head.count <= self.snapshot_offset:
                continue
            for record in decode_batch(batch, inflated_bytes_max=INFLATED_BYTES_MAX):
                self._apply(record.key or b"", record.value)
                count += 1
        return count

    def _apply(self, name: bytes, value: bytes | None) -> None:
        kind, _, key = name.partition(b"\0")
        owner = self._owners.get(kind.decode())
        if owner is None:  # kept for the next snapshot: a newer version's state must not be lost by an older one
            if value is None:
                self._unknown.pop(name, None)
            else:
                self._unknown[name] = value
            return
        owner.apply(key, value)

    def _find_stem(self, logs: Mapping[int, Log]) -> Log:
        data = self._data or b""
        if data[: len(MAGIC)] != MAGIC or crc32c(data[:-4]) != int.from_bytes(data[-4:], "big"):
            raise StorageFault(
                f"{self._path} is damaged; queue, session and offset state cannot be trusted",
                fix=f"restore a backup, or move {self._path} away to rebuild what the log still holds",
            )
        log_id, self.snapshot_offset = HEAD.unpack_from(data, len(MAGIC))
        if log_id not in logs:
            raise StorageFault(
                f"{self._path}: the state lies in log {log_id}, which is not there",
                fix="restore a backup",
            )
        return logs[log_id]

    def _load_snapshot(self) -> int:
        data, self._data = self._data, None
        if data is None:
            return 0
        at, count = len(MAGIC) + HEAD.size, 0
        while at < len(data) - 4:
            name_size, value_size = struct.unpack_from(">II", data, at)
            name = data[at + 8 : at + 8 + name_size]
            at += 8 + name_size
            value = None if value_size == NULL else data[at : at + value_size]
            at += 0 if value is None else value_size
            self._apply(name, value)
            count += 1
        return count

    # -- snapshots -------------------------------------------------------------------------------------------------

    def snapshot_due(self) -> bool:
        grown = self.stem.written - self.snapshot_offset
        return not self._snapshot_running and (self._put_since_snapshot > SNAPSHOT_EVERY_BYTES // 8 or grown > 1 << 20)

    def take_snapshot(self) -> tuple[int, bytes]:
        """All state as of everything written so far, as bytes. Call it between ticks; store it once that is stable."""
        self._put_since_snapshot = 0
        parts = [_head(self.stem.id, self.stem.written)]
        for kind, owner in self._owners.items():
            prefix = kind.encode() + b"\0"
            for key, value in owner.dump():
                parts += (struct.pack(">II", len(prefix) + len(key), len(value)), prefix, key, value)
        for name, kept in self._unknown.items():
            parts += (struct.pack(">II", len(name), len(kept)), name, kept)
        return self.stem.written, _sealed(parts)

    def close(self) -> None:
        """After everything is stable: the last snapshot. The next run goes on in the stem of the defaults."""
        with self._storing:  # a thread may still write an older one; another must not begin afterwards
            self._closed = True
            self.stem = self._next_stem
            try:
                self._store(*self.take_snapshot())
            except DiskFull as error:
                logger.warning("the next start replays more of the journal: %s", error)

    def store_snapshot(self, offset: int, data: bytes) -> None:
        """Durable once this returns; runs in a thread. `offset` must be stable. Not any more after `close`."""
        with self._storing:
            if not self._closed:
                self._store(offset, data)

    def _store(self, offset: int, data: bytes) -> None:
        assert offset <= self.stem.stable
        self._snapshot_running = True
        try:
            self._write(data)
            self.snapshot_offset = offset
        except OSError as error:
            with contextlib.suppress(OSError):
                self._temporary.unlink()
            if is_full(error):
                raise DiskFull(f"{self._path}: no space for a snapshot of {len(data)} bytes: {error}") from error
            raise
        finally:
            self._snapshot_running = False

    def _write(self, data: bytes) -> None:
        with self._temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._temporary.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _head(log_id: int, offset: int) -> bytes:
    return MAGIC + HEAD.pack(log_id, offset)


def _sealed(parts: list[bytes]) -> bytes:
    body = b"".join(parts)
    return body + crc32c(body).to_bytes(4, "big")

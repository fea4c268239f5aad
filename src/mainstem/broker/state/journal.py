"""Durable small state: acks, offsets, session positions, retained pointers, decisions.

State is appended as state frames to a log, so that it shares the tick's write and the round's fdatasync with the data it
speaks of. Entries are changes: what an owner writes does not grow with what it holds. A snapshot bounds what a start has
to replay: it is taken in slices between ticks, and is put in place only once everything written by its end is durable, in
every log (`snapshot.py` draws its file).

    state record:  key = kind 0x00 namespace 0x00 key,  value = the owner's bytes (null: forgotten)

A journal is where the state of a namespace lies: state frames of that log from that offset on. Today one journal, of every
namespace ("*"), lies in the default stem of the default namespace; that entries carry their namespace and snapshots name
their journals is what lets each namespace have its own (ADR 6). The journal stays in its log for as long as the broker runs:
when the defaults change, and with them the default stem, a clean stop moves it by naming the new one.

Data of format 1 had entries without a namespace and `state.snapshot` ("MSSNAP1\\n", one log id and offset). It is read once
(`_upgrade`) and written as format 2; a stop with `back_to_format_1` is the way back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from mainstem.broker.state import snapshot as snapshots
from mainstem.broker.state._journal_entries import entries_of_batch
from mainstem.broker.state.snapshot import (
    HEAD_1,
    MAGIC,
    MAGIC_1,
    MAGIC_TAKEN,
    NULL,
    SIZES,
    TAKEN,
    Apply,
    Bulk,
    Snapshot,
)
from mainstem.codec.batch import FRAME_HEAD_SIZE, KIND_STATE, verify_frame
from mainstem.log.gather import Ticket
from mainstem.log.log import Log
from mainstem.model.clock import Clock
from mainstem.model.errors import DiskFull, StorageFault
from mainstem.storage.disk import REAL_DISK, Disk, is_full

logger = logging.getLogger("mainstem.broker")

DIRECTORY, NAME, NAME_1 = "state", "all.snapshot", "state.snapshot"
DEFAULT_NAMESPACE = "/"
SNAPSHOT_EVERY_BYTES = 8 << 20  # of entries: applied one by one they take a quarter of a second
HASTE_MAX = 4  # slices of a snapshot grow to 16 ms where the journal grows faster than it is taken
READ_BYTES = 4 << 20
INFLATED_BYTES_MAX = 64 << 20

Dump = Callable[[], Iterable[tuple[bytes, bytes]]]


def default_namespace(key: bytes) -> str:
    """Of state that belongs to no namespace, or to all."""
    return DEFAULT_NAMESPACE


def first_namespace(key: bytes) -> str:
    """Of keys that begin with their namespace and a zero byte."""
    return key.partition(b"\0")[0].decode()


def same_key(key: bytes) -> bytes:
    """Of kinds whose every key changes by itself."""
    return key


class Entries(Enum):
    """What entries of a kind are, and with that how a snapshot takes them."""

    WHOLE = "whole"  # each says the whole of its key: it may be applied again over a later state, and ends in the same
    CHANGES = "changes"  # of what is named by kind and key: the snapshot notes which of them it has already
    COPIED = "copied"  # they depend on other kinds: `dump` copies all when it is called, and yields it later


class Owner(NamedTuple):
    apply: Apply
    dump: Dump
    namespace_of: Callable[[bytes], str]
    entries: Entries
    part_of: str  # the kind with which it is dumped; its own name: by itself
    changed_key: Callable[[bytes], bytes]
    bulk: Bulk | None


class StateKeeper(Protocol):
    """What those who keep small durable state need of the journal."""

    def register(
        self,
        kind: str,
        apply: Apply,
        dump: Dump,
        namespace_of: Callable[[bytes], str] = default_namespace,
        *,
        entries: Entries = Entries.WHOLE,
        part_of: str = "",
        changed_key: Callable[[bytes], bytes] = same_key,
        bulk: Bulk | None = None,
    ) -> None: ...

    def put(self, kind: str, key: bytes, value: bytes | None) -> Ticket: ...


class Journal:
    def __init__(
        self,
        stem: Log,
        data: Path,
        clock: Clock,
        logs: Mapping[int, Log] | None = None,
        disk: Disk = REAL_DISK,
        *,
        on_upgraded: Callable[[], None] = lambda: None,
    ) -> None:
        """`stem` is the default one, where a new journal begins; `logs` are those an older one may lie in.

        `on_upgraded` is called once state of format 1 was taken over, before the old snapshot goes.
        """
        self.snapshot_offset = 0  # state frames below it are in the snapshot
        self._path, self._path_1 = data / DIRECTORY / NAME, data / NAME_1
        self._temporary = self._path.with_suffix(".new")
        self._on_upgraded = on_upgraded
        self._disk = disk
        self._data_1 = snapshots.read(disk, self._path_1)
        self._data = None if self._data_1 is not None else snapshots.read(disk, self._path)
        self._next_stem = stem
        self.stem = stem
        if self._data is not None or self._data_1 is not None:
            self.stem = self._find_stem({stem.id: stem, **(logs or {})})
        self._clock = clock
        self._owners: dict[str, Owner] = {}
        self._unknown: dict[bytes, bytes] = {}
        self._put_since_snapshot = 0
        self.back_to_format_1 = False  # set before a clean stop
        self.put_bytes = 0  # of all entries since the start: names and values, before frames
        self._newest: Ticket | None = None
        self._snapshot_running = False
        self._taking: Snapshot | None = None
        self._taken: dict[str, dict[bytes, int]] = {}  # while recovering: what the snapshot has, up to which offset
        self._storing = threading.Lock()
        self._closed = False

    def register(
        self,
        kind: str,
        apply: Apply,
        dump: Dump,
        namespace_of: Callable[[bytes], str] = default_namespace,
        *,
        entries: Entries = Entries.WHOLE,
        part_of: str = "",
        changed_key: Callable[[bytes], bytes] = same_key,
        bulk: Bulk | None = None,
    ) -> None:
        """`apply` is called for each entry in order while recovering; `dump` must yield what `apply` would rebuild.

        `namespace_of` says whose state a key names. A snapshot is taken in slices: `dump` must stand changes between two
        entries, and what it yields must be true at that moment. `part_of` names the kind whose owner takes these
        entries, too; `changed_key` is the key by which that kind knows them. `bulk` packs and loads them.
        """
        assert kind not in self._owners and "\0" not in kind
        self._owners[kind] = Owner(apply, dump, namespace_of, entries, part_of or kind, changed_key, bulk)

    def put(self, kind: str, key: bytes, value: bytes | None) -> Ticket:
        """Append one entry; its ticket is released once it is durable."""
        gather = self.stem.state()
        owner = self._owners.get(kind)
        name = _name(kind, DEFAULT_NAMESPACE if owner is None else owner.namespace_of(key), key)
        ticket = self._newest = gather.ticket
        index = gather.add_state(name, value, self._clock.now_ns() // 1_000_000)
        size = len(name) + len(value or b"")
        self.put_bytes += size
        self._put_since_snapshot += size + 32
        if self._taking is not None and owner is not None and owner.entries is Entries.CHANGES:
            if self._taking.whole:
                self._taking = None
            else:
                self._taking.note_change((owner.part_of, owner.changed_key(key)), ticket, index)
        return ticket

    def unsynced(self) -> Ticket | None:
        """The ticket of the newest entry, which is released once all entries are durable; None if they are."""
        newest = self._newest
        return newest if newest is not None and not newest.stable and newest.error is None else None

    # -- recovery --------------------------------------------------------------------------------------------------

    def recover(self) -> int:
        """Apply the snapshot, then every state frame after it; returns how many entries were applied."""
        if self._data_1 is not None:
            return self._upgrade(self._data_1)
        if self._data is None:  # from now on it is known where the journal lies
            self._disk.make_dir(self._path.parent)
            self._write(snapshots.sealed([snapshots.head(self.stem.id, 0)]))
        count = self._load_snapshot() + self._replay_log(self._replay_entries)
        self._taken = {}
        return count

    def _upgrade(self, data: bytes) -> int:
        """Take over what format 1 kept. Until the old snapshot is gone a crash begins this again from the start."""
        count = snapshots.load_entries(data, len(MAGIC_1) + HEAD_1.size, len(data) - 4, self._apply_1)
        count += self._replay_log(lambda entries, _: snapshots.load_entries(entries, 0, len(entries), self._apply_1))
        self._disk.make_dir(self._path.parent)
        snapshot = self.take_snapshot()
        self._write(snapshot.sealed())
        self.snapshot_offset = snapshot.offset
        self._on_upgraded()
        self._disk.unlink(self._path_1)
        self._disk.fsync_dir(self._path_1.parent)
        self._data_1 = None
        logger.info("state of format 1 was taken over: %d entries", count)
        return count

    def _write_format_1(self) -> None:
        """The way back: everything as a snapshot of format 1, so that no entry of format 2 is read there."""
        parts = [MAGIC_1 + HEAD_1.pack(self.stem.id, self.stem.written)]
        for name, value in chain(self._all_entries(), self._unknown.items()):
            kind, _, key = name.split(b"\0", 2)
            if kind != b"delayed" or len(key) == 8:  # it knew no other keys of that kind
                parts.append(snapshots.entry(kind + b"\0" + key, value))
        self._write(snapshots.sealed(parts), self._path_1)
        self._disk.unlink(self._path)
        self._disk.fsync_dir(self._path.parent)

    def _replay_log(self, replay: Callable[[bytes, int], int]) -> int:
        """`replay` gets the entries of each state frame and the offset of the first; returns how many there were."""
        count = 0
        offset = self.snapshot_offset  # not the log's start, which is that of streams
        while (piece := self.stem.read_in_thread(offset, READ_BYTES)) is not None:
            data, at = piece.data, 0
            while at < len(data):
                head = verify_frame(data, at, self.stem.id)
                batch = data[at + FRAME_HEAD_SIZE : at + head.size]
                at += head.size
                if head.kind == KIND_STATE and head.base_offset + head.count > self.snapshot_offset:
                    entries = entries_of_batch(batch, inflated_bytes_max=INFLATED_BYTES_MAX)
                    self._put_since_snapshot += len(entries)  # the next crash must not find more and more
                    count += replay(entries, head.base_offset)
            offset = piece.end_offset
        return count

    def _replay_entries(self, data: bytes, offset: int) -> int:
        """Those that bulk owners take are taken in one go; the others are applied one by one."""
        end, sizes, at, count = len(data), SIZES.unpack_from, 0, 0
        prefix, owner, bulk = b"\0", cast(Owner | None, None), cast(Bulk | None, None)
        taken: dict[bytes, int] = {}
        while at < end:
            name_size, value_size = sizes(data, at)
            name_at = at + SIZES.size
            if not data.startswith(prefix, name_at):
                kind, namespace, _ = data[name_at : name_at + name_size].split(b"\0", 2)
                prefix = b"%b\0%b\0" % (kind, namespace)
                owner = self._owners.get(kind.decode())
                bulk = None if owner is None else self._owners[owner.part_of].bulk
                is_changes = owner is not None and owner.entries is Entries.CHANGES
                taken = self._taken.get(owner.part_of, {}) if owner is not None and is_changes else {}
            if bulk is not None:
                after, passed = bulk.replay(data, at, end, offset + count, taken)
                if passed:
                    at, count = after, count + passed
                    continue
            value_at = name_at + name_size
            at = value_at if value_size == NULL else value_at + value_size
            value = None if value_size == NULL else data[value_at:at]
            if owner is None:
                self._apply(data[name_at:value_at], value)
            else:
                key = data[name_at + len(prefix) : value_at]
                if not taken or offset + count > taken.get(owner.changed_key(key), -1):
                    owner.apply(key, value)
            count += 1
        return count

    def _apply(self, name: bytes, value: bytes | None) -> None:
        kind, _, key = name.split(b"\0", 2)
        owner = self._owners.get(kind.decode())
        if kind == TAKEN.encode():
            taken_kind, _, taken_key = key.partition(b"\0")
            self._taken.setdefault(taken_kind.decode(), {})[taken_key] = int.from_bytes(value or b"", "big")
            return
        if owner is None:  # kept for the next snapshot: a newer version's state must not be lost by an older one
            if value is None:
                self._unknown.pop(name, None)
            else:
                self._unknown[name] = value
            return
        owner.apply(key, value)

    def _apply_1(self, name: bytes, value: bytes | None) -> None:
        """An entry of format 1: its owner knows whose it is."""
        kind, _, key = name.partition(b"\0")
        self._apply(_name(kind.decode(), DEFAULT_NAMESPACE, key), value)

    def _find_stem(self, logs: Mapping[int, Log]) -> Log:
        magics: tuple[bytes, ...]
        data, path, magics = self._data or b"", self._path, (MAGIC, MAGIC_TAKEN)
        if self._data_1 is not None:
            data, path, magics = self._data_1, self._path_1, (MAGIC_1,)
        if not snapshots.is_whole(data, *magics):
            raise StorageFault(
                f"{path} is damaged; queue, session and offset state cannot be trusted",
                fix=f"restore a backup, or move {path} away to rebuild what the log still holds",
            )
        if self._data_1 is not None:
            log_id, self.snapshot_offset = HEAD_1.unpack_from(data, len(MAGIC_1))
        else:
            [(_, log_id, self.snapshot_offset)] = snapshots.journals(data)[0]
        if log_id not in logs:
            raise StorageFault(
                f"{path}: the state lies in log {log_id}, which is not there",
                fix="restore a backup",
            )
        return logs[log_id]

    def _load_snapshot(self) -> int:
        data, self._data = self._data, None
        return 0 if data is None else self._load_entries(data, snapshots.journals(data)[1])

    def _load_entries(self, data: bytes, at: int) -> int:
        """Neighbours are of one kind and namespace: what tells them is looked up once."""
        end, sizes, count = len(data) - 4, SIZES.unpack_from, 0
        prefix, skip, apply = b"\0", 0, cast(Apply, None)
        while at < end:
            name_size, value_size = sizes(data, at)
            at += 8
            value_at = at + name_size
            if not data.startswith(prefix, at):
                kind, namespace, _ = data[at:value_at].split(b"\0", 2)
                owner = self._owners.get(kind.decode())
                prefix = b"%b\0%b\0" % (kind, namespace)
                apply, skip = (self._apply, 0) if owner is None else (owner.apply, len(prefix))
                if owner is not None and owner.bulk is not None:
                    after, taken = owner.bulk.load(data, at - 8, end)
                    if taken:
                        at, count = after, count + taken
                        continue
            value_end = value_at if value_size == NULL else value_at + value_size
            apply(data[at + skip : value_at], None if value_size == NULL else data[value_at:value_end])
            at = value_end
            count += 1
        return count

    # -- snapshots -------------------------------------------------------------------------------------------------

    def snapshot_due(self) -> bool:
        grown = self.stem.written - self.snapshot_offset
        return not self._snapshot_running and (self._put_since_snapshot > SNAPSHOT_EVERY_BYTES or grown > 1 << 20)

    def snapshot_haste(self) -> int:
        """How often the slices of the snapshot on its way are to be doubled.

        Slices of a fixed size get behind where clients put state all the while, and the snapshot would never be whole:
        each time as much was put as is worth a snapshot, the rest is taken in slices of twice the size.
        """
        return min(self._put_since_snapshot // SNAPSHOT_EVERY_BYTES, HASTE_MAX)

    def begin_snapshot(self) -> Snapshot:
        """All state as of everything written so far. Call it between ticks, `go_on` until it is whole, and store it once
        everything that was put by then is stable."""
        self._put_since_snapshot = 0
        snapshot = self._taking = Snapshot(self.stem.written, snapshots.head(self.stem.id, self.stem.written))
        copied = [(kind, one, one.dump()) for kind, one in self._own_kinds() if one.entries is Entries.COPIED]
        unknown = list(self._unknown.items())
        snapshot.rest = chain(
            snapshots.pieces_of(self._taken_in_slices(snapshot)),
            self._bulk_pieces(snapshot),
            # Last, because loading them may change the others: the offsets of a transaction that was just decided.
            snapshots.pieces_of(chain(*(_named(kind, owner, found) for kind, owner, found in copied), unknown)),
        )
        return snapshot

    def take_snapshot(self) -> Snapshot:
        """The whole at once: while nobody is served."""
        snapshot = self.begin_snapshot()
        while not snapshot.go_on(1 << 20):
            pass
        return snapshot

    def _own_kinds(self) -> list[tuple[str, Owner]]:
        return [(kind, owner) for kind, owner in self._owners.items() if owner.part_of == kind]

    def _taken_in_slices(self, snapshot: Snapshot) -> Iterator[tuple[bytes, bytes]]:
        for kind, owner in self._own_kinds():
            if owner.entries is Entries.COPIED or owner.bulk is not None:
                continue
            for key, value in owner.dump():
                if owner.entries is Entries.CHANGES:
                    snapshot.took((kind, owner.changed_key(key)))
                yield _name(kind, owner.namespace_of(key), key), value

    def _bulk_pieces(self, snapshot: Snapshot) -> Iterator[bytes]:
        for kind, owner in self._own_kinds():
            if owner.bulk is not None:
                yield from owner.bulk.pieces(partial(_took, snapshot, kind))

    def _all_entries(self) -> Iterator[tuple[bytes, bytes]]:
        for kind, owner in self._owners.items():
            yield from _named(kind, owner, owner.dump())

    def close(self) -> None:
        """After everything is stable: the last snapshot. The next run goes on in the stem of the defaults."""
        with self._storing:  # a thread may still write an older one; another must not begin afterwards
            self._closed = True
            if self.back_to_format_1:
                self._write_format_1()
                return
            self.stem = self._next_stem
            try:
                self._store(self.take_snapshot())
            except DiskFull as error:
                logger.warning("the next start replays more of the journal: %s", error)

    def store_snapshot(self, snapshot: Snapshot) -> None:
        """Durable once this returns; runs in a thread. Its offset must be stable. Not any more after `close`."""
        with self._storing:
            if self._closed or snapshot.offset < self.snapshot_offset:
                return
            if snapshot.finish():
                self._store(snapshot)
            else:
                logger.info("a snapshot is left out: some of what it tells of could not be written")

    def _store(self, snapshot: Snapshot) -> None:
        assert snapshot.whole and snapshot.offset <= self.stem.stable
        self._snapshot_running = True
        pieces = snapshot.sealed()
        try:
            self._write(pieces)
            self.snapshot_offset = snapshot.offset
        except OSError as error:
            with contextlib.suppress(OSError):
                self._disk.unlink(self._temporary)
            if is_full(error):
                size = sum(map(len, pieces))
                raise DiskFull(f"{self._path}: no space for a snapshot of {size} bytes: {error}") from error
            raise
        finally:
            self._snapshot_running = False

    def _write(self, pieces: list[bytes], path: Path | None = None) -> None:
        snapshots.write(self._disk, path or self._path, self._temporary, pieces)


def _took(snapshot: Snapshot, kind: str, key: bytes) -> None:
    snapshot.took((kind, key))


def _named(kind: str, owner: Owner, found: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    for key, value in found:
        yield _name(kind, owner.namespace_of(key), key), value


def _name(kind: str, namespace: str, key: bytes) -> bytes:
    return b"%b\0%b\0%b" % (kind.encode(), namespace.encode(), key)

"""A snapshot of the journal: all state as of an offset, so that a start need not replay what lies before it.

    "MSSNAP2\\n", u32 number of journals, per journal u32 namespace length, u64 log id, u64 offset, namespace;
    then per entry u32 length of kind 0x00 namespace 0x00 key, u32 value length (0xFFFFFFFF = null), the two;
    then crc32c of all before it. Big-endian. Replaced by rename.

It is made of pieces, some entries each: a piece is what is taken in one go, checksummed and written. Between two slices of
some pieces the broker serves, and state changes. A start replays the journal from the snapshot's offset on, so what was
taken later than that must say how much of the journal it has already:

    journal   ──offset──┬──change of A──┬──change of A──┬──change of A──▶
    slices              begin           │   A is taken, as of here        kind "*taken": key = kind 0x00 key of A,
                                        └── in the snapshot already ──┘   value = u64 offset of the last change in it

Only what changed between the beginning and its slice has such an entry; a file with some begins with "MSSNAP3\\n", so
that a version that does not know them refuses it. There may be millions of entries: an owner of that many packs and loads
them itself (`Bulk`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from mainstem.codec.batch import crc32c
from mainstem.log.gather import Ticket
from mainstem.storage.disk import BUFFERS_MAX, Disk, read_all, write_all
from mainstem.storage.state_file import remove

MAGIC, MAGIC_1, MAGIC_TAKEN = b"MSSNAP2\n", b"MSSNAP1\n", b"MSSNAP3\n"
HEAD_1 = struct.Struct(">QQ")
COUNT = struct.Struct(">I")
PLACE = struct.Struct(">IQQ")  # of a journal: length of its namespace, log id, offset
SIZES = struct.Struct(">II")  # of an entry: name, value
NULL = 0xFFFFFFFF
EVERY_NAMESPACE = "*"
PIECE_ENTRIES = 100
TAKEN = "*taken"  # a kind of the snapshot's own
TAKEN_PREFIX = f"{TAKEN}\0{EVERY_NAMESPACE}\0".encode()
CHANGED_MAX = 1_000_000  # noted while a snapshot is taken; beyond it the rest is taken at once

Named = tuple[str, bytes]  # a kind and a key of it: what changes, and is taken, as one
Apply = Callable[[bytes, bytes | None], None]


class Bulk(Protocol):
    """An owner of so many entries that it packs and loads them itself."""

    def pieces(self, took: Callable[[bytes], None]) -> Iterator[bytes]:
        """All entries, in pieces that take about a quarter of a millisecond each; it may change between two.

        `took` hears the key of each that may have changed since the snapshot began.
        """

    def load(self, data: bytes, at: int, end: int) -> tuple[int, int]:
        """Take its entries from `at` on; where the first one begins that is not its own, and how many it took."""

    def replay(self, data: bytes, at: int, end: int, offset: int, taken: dict[bytes, int]) -> tuple[int, int]:
        """The same with entries of the journal, the first of which has that offset. Those that are not simple are left
        for `apply`. `taken`: by key, up to which offset the snapshot has its changes."""


class Snapshot:
    """On its way: begun as of an offset, taken in slices afterwards."""

    def __init__(self, offset: int, first: bytes) -> None:
        self.offset = offset
        self.rest: Iterator[bytes] = iter(())
        self.whole = False
        self._pieces = [first]
        self._changed: dict[Named, tuple[Ticket, int]] = {}  # since it began: where the newest change of each lies
        self._taken: dict[Named, tuple[Ticket, int]] = {}  # of those that were taken after they had changed

    def go_on(self, pieces_max: int) -> bool:
        """Take some more; True when it is whole."""
        before = len(self._pieces)
        self._pieces.extend(islice(self.rest, pieces_max if len(self._changed) < CHANGED_MAX else None))
        self.whole = self.whole or len(self._pieces) - before != pieces_max
        return self.whole

    def note_change(self, named: Named, ticket: Ticket, index: int) -> None:
        """That entry of the batch behind `ticket` changes it."""
        self._changed[named] = ticket, index

    def took(self, named: Named) -> None:
        """The first entry of it was taken just now; with what is put of it from here on it is as it must be."""
        change = self._changed.get(named)
        if change is not None:
            self._taken.setdefault(named, change)

    def finish(self) -> bool:
        """Once everything put by then is written, in a thread; False if some was not, and the snapshot tells of it."""
        entries = []
        for (kind, key), (ticket, index) in self._taken.items():
            if ticket.error is not None or ticket.base_offset < 0:
                return False
            name = TAKEN_PREFIX + kind.encode() + b"\0" + key
            entries.append((name, (ticket.base_offset + index).to_bytes(8, "big")))
        if entries:
            self._pieces[0] = MAGIC_TAKEN + self._pieces[0].removeprefix(MAGIC)
            self._pieces.extend(pieces_of(entries))
            self._taken = {}
        return True

    def sealed(self) -> list[bytes]:
        """With the checksum, for a thread: this looks at all of it."""
        return sealed(self._pieces)


def sealed(pieces: list[bytes]) -> list[bytes]:
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return [*pieces, checksum.to_bytes(4, "big")]


def is_whole(data: bytes, *magics: bytes) -> bool:
    body = memoryview(data)[:-4]
    return data.startswith(magics) and crc32c(body) == int.from_bytes(data[-4:], "big")


def head(log_id: int, offset: int) -> bytes:
    namespace = EVERY_NAMESPACE.encode()
    return MAGIC + COUNT.pack(1) + PLACE.pack(len(namespace), log_id, offset) + namespace


class Place(NamedTuple):
    """Where a journal lies: state frames of that log from that offset on."""

    namespace: str
    log_id: int
    offset: int


def journals(data: bytes) -> tuple[list[Place], int]:
    """The journals that a snapshot names, and where its entries begin."""
    (count,) = COUNT.unpack_from(data, len(MAGIC))
    at, found = len(MAGIC) + COUNT.size, []
    for _ in range(count):
        size, log_id, offset = PLACE.unpack_from(data, at)
        at += PLACE.size + size
        found.append(Place(data[at - size : at].decode(), log_id, offset))
    return found, at


def entry(name: bytes, value: bytes) -> bytes:
    return b"".join((SIZES.pack(len(name), len(value)), name, value))


def pieces_of(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    packed = (entry(name, value) for name, value in entries)
    while piece := b"".join(islice(packed, PIECE_ENTRIES)):
        yield piece


def load_entries(data: bytes, at: int, end: int, apply: Apply) -> int:
    """Apply the entries from a position on; how many there were."""
    count = 0
    while at < end:
        name_size, value_size = SIZES.unpack_from(data, at)
        name = data[at + 8 : at + 8 + name_size]
        at += 8 + name_size
        value = None if value_size == NULL else data[at : at + value_size]
        at += 0 if value is None else value_size
        apply(name, value)
        count += 1
    return count


def read(disk: Disk, path: Path) -> bytes | None:
    try:
        fd = disk.open(path, read_only=True)
    except FileNotFoundError:
        return None
    try:
        return read_all(disk, fd, 0, disk.size(fd))
    finally:
        disk.close(fd)


def write(disk: Disk, path: Path, temporary: Path, pieces: list[bytes]) -> None:
    """The whole file or, after a crash, the one before it."""
    remove(disk, temporary)  # of a write that a crash cut short
    fd = disk.open(temporary, create=True)
    try:
        position = 0
        for first in range(0, len(pieces), BUFFERS_MAX):
            position = write_all(disk, fd, pieces[first : first + BUFFERS_MAX], position)
        disk.fsync(fd)
    finally:
        disk.close(fd)
    disk.rename(temporary, path)
    disk.fsync_dir(path.parent)
    disk.fsync_dir(temporary.parent)

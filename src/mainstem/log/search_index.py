"""What a sealed part cannot hold: a search reads only blocks that may have its words and its time.

A part's frames are indexed in blocks of about BLOCK_BYTES. Of each block the file keeps where it lies, its first stamp, the
times of its records, and a Bloom filter over the words in their keys and values, and in the headers of Kafka clients: runs
of letters, digits, `_` and bytes beyond ASCII, with ASCII letters in lower case, of which the first 64 bytes count. It says
"not here" or "maybe", so a wrong index could hide records. Therefore everything in it has a checksum, it names the size of
the part that it was made of (sealed parts never change; rewritten ones have another name), and one that does not match is as
good as none: who meets it deletes it, and it is built again.

    <data>/search/<log>/<name of the part>.search, little-endian

     0   8  "MSSRCH02"
     8   8  bytes of the part that are indexed
    16   4  blocks
    20   4  CRC-32C of bytes 0 to 20 and of all zones
    24      zones, 72 bytes each:
             0  8  position in the part's file        8  8  bytes
            16  8  first offset                       24  8  first stamp
            32  8  earliest time of a record, ms      40  8  latest
            48  8  where its filter begins in this file
            56  4  lines of its filter (0: none, the block is always read)
            60  4  flags: bit 0, JSON escapes (\\u) stand in it; bit 1, something in it could not be read; bit 2, not all
                   of it came by Kafka, and what readers see as headers is not in the filter
            64  4  CRC-32C of the filter              68  4  zero
         filters: lines of 64 bytes; a word sets six bits of one line

A filter takes 16 bits a distinct word, and at most a twentieth of the block's uncompressed bytes; where that leaves less
than 6 bits a word (binary data) there is none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mainstem.codec.batch import BATCH_HEAD_SIZE, FRAME_HEAD_SIZE, crc32c
from mainstem.codec.compression import inflate
from mainstem.codec.large_memory import Block
from mainstem.log._search_index import BlockTokens, holds_all, token_hashes
from mainstem.model.errors import MainstemError
from mainstem.storage.steady import read_steadily_into, write_steadily

__all__ = ["SearchIndex", "build_index", "holds_all", "index_path", "is_whole", "token_hashes"]

MAGIC = b"MSSRCH02"
HEAD_BYTES, ZONE_BYTES, LINE_BYTES = 24, 72, 64
BLOCK_BYTES = 1 << 20
FRAME_BYTES_MAX = 256 << 20
INFLATED_BYTES_MAX = 64 << 20  # of one batch; beyond it the block has no filter
BITS_A_WORD, BITS_A_WORD_MIN, SHARE_MAX = 16, 6, 20
ESCAPES, UNKNOWN, CROSSED = 1, 2, 4
SUFFIX = ".search"


def index_path(part: Path) -> Path:
    """Where the index of `<data>/logs/<log>/<part>.log` lies."""
    log = part.parent
    return log.parent.parent / "search" / log.name / f"{part.stem}{SUFFIX}"


# -- building ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Zone:
    at: int
    size: int
    lines: bytes
    tokens: BlockTokens  # read before it is cleared

    def head(self, filter_at: int) -> bytes:
        told = self.tokens
        has_times = told.time_min_ms <= told.time_max_ms
        numbers = (
            self.at,
            self.size,
            told.first_offset,
            told.first_stamp,
            told.time_min_ms if has_times else 0,
            told.time_max_ms if has_times else 0,
            filter_at,
        )
        packed = b"".join(one.to_bytes(8, "little", signed=True) for one in numbers)
        flags = (ESCAPES if told.escapes else 0) | (UNKNOWN if told.unknown else 0)
        flags |= CROSSED if told.crossed else 0
        small = (len(self.lines) // LINE_BYTES, flags, crc32c(self.lines), 0)
        return packed + b"".join(one.to_bytes(4, "little") for one in small)


def build_index(part: Path, size: int) -> int:
    """Index the first `size` bytes of a sealed part; returns the bytes of the index. In a thread: it reads all of it, mostly
    without the interpreter's lock. A crash leaves the old index, or none."""
    heads: list[bytes] = []
    filters: list[bytes] = []
    filled = 0
    zones: list[tuple[bytes, int]] = []
    for zone in _zones(part, size):
        zones.append((zone.head(filled), len(zone.lines)))
        filters.append(zone.lines)
        filled += len(zone.lines)
    begin = HEAD_BYTES + ZONE_BYTES * len(zones)
    for head, _ in zones:
        at = int.from_bytes(head[48:56], "little") + begin
        heads.append(head[:48] + at.to_bytes(8, "little") + head[56:])
    front = MAGIC + size.to_bytes(8, "little") + len(zones).to_bytes(4, "little")
    front += crc32c(b"".join(heads), crc32c(front)).to_bytes(4, "little")
    return _write(index_path(part), b"".join((front, *heads, *filters)))


def _write(path: Path, data: bytes) -> int:
    """It need not survive a power cut, which is why nobody waits for it: what is cut off has no right checksum."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        write_steadily(file.fileno(), [data])
    part.replace(path)
    return len(data)


def _zones(part: Path, size: int) -> Iterator[_Zone]:
    tokens = BlockTokens()
    fd = os.open(part, os.O_RDONLY)
    try:
        small, at = memoryview(bytearray(BLOCK_BYTES)), 0
        room = small
        while at < size:
            tokens.clear()
            got = read_steadily_into(fd, room[: size - at], at)
            taken, packed, damaged = tokens.add_frames(room, got)
            frame_bytes = FRAME_HEAD_SIZE + int.from_bytes(room[8:12])
            if damaged or (not taken and (got < len(room) or frame_bytes > FRAME_BYTES_MAX)):
                tokens.give_up()
                yield _Zone(at, size - at, b"", tokens)  # the rest: whoever reads it meets what is wrong
                return
            if not taken:  # larger than a block; filling new memory with zeros would keep the interpreter's lock
                room = Block(frame_bytes).view()
                continue
            for position, length in packed:
                _add_packed(tokens, room[position : position + length])
            yield _Zone(at, taken, _filter(tokens), tokens)
            at += taken
            room = small
    finally:
        os.close(fd)


def _add_packed(tokens: BlockTokens, batch: memoryview) -> None:
    if tokens.unknown:
        return
    try:
        tokens.add_records(batch[:BATCH_HEAD_SIZE], inflate(batch[22] & 7, batch[BATCH_HEAD_SIZE:], INFLATED_BYTES_MAX))
    except MainstemError:
        tokens.give_up()


def _filter(tokens: BlockTokens) -> bytes:
    if tokens.unknown or not tokens.tokens:
        return b"" if tokens.unknown else tokens.lines(1)
    bits = min(tokens.tokens * BITS_A_WORD, tokens.raw_bytes * 8 // SHARE_MAX)
    if bits < tokens.tokens * BITS_A_WORD_MIN:
        return b""
    return tokens.lines(max(1, bits // (LINE_BYTES * 8)))


# -- asking ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Zone:
    """One block, as a search sees it."""

    at: int
    size: int
    first_offset: int
    first_stamp: int
    time_min_ms: int
    time_max_ms: int
    filter_at: int
    lines: int
    escapes: bool
    unknown: bool
    crossed: bool
    checksum: int

    @property
    def end(self) -> int:
        return self.at + self.size


class SearchIndex:
    """An index whose zones were found whole, in memory (some 3 % of its part). Filters are checked when they are used."""

    def __init__(self, part: Path, data: bytes, zones: list[Zone], size: int) -> None:
        self._part, self._data = part, memoryview(data)
        self.zones = zones
        self.size = size  # of the part

    @classmethod
    def load(cls, part: Path) -> SearchIndex | None:
        """None where there is none that can be trusted."""
        try:
            data = index_path(part).read_bytes()
        except OSError:
            return None
        zones = _zones_in(data)
        if zones is None:
            _discard(part)
            return None
        return cls(part, data, zones, int.from_bytes(data[8:16], "little"))

    def filter_of(self, zone: Zone) -> memoryview:
        """Its lines; none where they cannot be trusted, and the block must be read."""
        lines = self._data[zone.filter_at : zone.filter_at + zone.lines * LINE_BYTES]
        if zone.unknown:
            return self._data[:0]
        if len(lines) != zone.lines * LINE_BYTES or crc32c(lines) != zone.checksum:
            _discard(self._part)
            return self._data[:0]
        return lines


def is_whole(path: Path) -> bool:
    """Whether an index has its format, its zones and its length. Filters are checked by who uses them."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            data = head + file.read(int.from_bytes(head[16:20], "little") * ZONE_BYTES)
            size = file.seek(0, os.SEEK_END)
    except OSError:
        return False
    zones = _zones_in(data)
    return zones is not None and max((one.filter_at + one.lines * LINE_BYTES for one in zones), default=size) <= size


def _zones_in(data: bytes) -> list[Zone] | None:
    count = int.from_bytes(data[16:20], "little")
    told = data[HEAD_BYTES : HEAD_BYTES + count * ZONE_BYTES]
    if len(data) < HEAD_BYTES or data[:8] != MAGIC or len(told) != count * ZONE_BYTES:
        return None
    if crc32c(told, crc32c(data[:20])) != int.from_bytes(data[20:24], "little"):
        return None
    return [_zone_of(told[at : at + ZONE_BYTES]) for at in range(0, len(told), ZONE_BYTES)]


def _discard(part: Path) -> None:
    """So that it is built again, which takes the part: of one that lies in a store only, what is right of it is kept."""
    with contextlib.suppress(OSError):
        if part.exists():
            index_path(part).unlink()


def _zone_of(packed: bytes) -> Zone:
    at, size, offset, stamp, time_min, time_max, filter_at = (
        int.from_bytes(packed[place : place + 8], "little", signed=True) for place in range(0, 56, 8)
    )
    lines, flags, checksum = (int.from_bytes(packed[place : place + 4], "little") for place in (56, 60, 64))
    escapes, unknown, crossed = (bool(flags & flag) for flag in (ESCAPES, UNKNOWN, CROSSED))
    return Zone(at, size, offset, stamp, time_min, time_max, filter_at, lines, escapes, unknown, crossed, checksum)

"""How a chunk of the topic index looks on disk. Derived data: anything doubtful is CorruptFrame, and the log rebuilds it.

A chunk covers the offsets of one stretch of 2^20, one place per offset. Little-endian:

    0  4s  magic "MSTC"            44 u32 places (all beyond them are empty)
    4  u32 version = 1             48 u32 topics in this chunk, t
    8  u32 CRC-32C of the body     52 u32 width of a place: 1, 2 or 4 bytes
    12 i64 base offset             56 u32 bytes of the lists
    20 i64 covered end offset      60 u32 CRC-32C of bytes 0..59
    28 u64 names generation        64 column: places × width, padded to 4 bytes
    36 u64 names end               .. numbers: t × u32, ascending
                                   .. starts: (t + 1) × u32, where the list of each begins
                                   .. lists: varint count, varint first place, varint distances

A place of the column holds 0 (no topic) or, if the width is 4, the topic's number, else its rank among `numbers`, from 1.
The column serves filters that mean many topics (a scan), the lists one topic (a look-up).

`names` is the file beside the chunks that says which topic a number means (topic_index_names.py). A chunk counts only
if that file is at least as new as it was when the chunk was written: of a later generation, or of the same one and
still that long.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mainstem.codec.batch import crc32c
from mainstem.model.errors import CorruptFrame

CHUNK_BITS = 20
CHUNK_RECORDS = 1 << CHUNK_BITS
WAITING_MAX = 8  # chunks of 4 to 8 MiB that wait to be packed; beyond that adding packs them itself
UNLIMITED = (1 << 63) - 1

_HEAD = struct.Struct("<4sIIqqQQIIII")
_CHECK = struct.Struct("<I")
HEAD_SIZE = _HEAD.size + _CHECK.size
_MAGIC = b"MSTC"
_VERSION = 1

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ChunkHead:
    base_offset: int
    covered_end: int
    generation: int
    names_end: int
    places: int
    topics: int
    width: int
    list_bytes: int
    checksum: int = 0  # of the body; computed by `pack_head`

    @property
    def column_bytes(self) -> int:
        return (self.places * self.width + 3) // 4 * 4

    @property
    def size(self) -> int:
        return HEAD_SIZE + self.column_bytes + 4 * self.topics + 4 * (self.topics + 1) + self.list_bytes


def pack_head(head: ChunkHead, body: Buffer) -> bytes:
    packed = _HEAD.pack(
        _MAGIC,
        _VERSION,
        crc32c(body),
        head.base_offset,
        head.covered_end,
        head.generation,
        head.names_end,
        head.places,
        head.topics,
        head.width,
        head.list_bytes,
    )
    return packed + _CHECK.pack(crc32c(packed))


def parse_head(data: Buffer) -> ChunkHead:
    """The head of a chunk, its own checksum tested and its sizes held against those of the data."""
    if len(data) < HEAD_SIZE:
        raise CorruptFrame(f"a topic index chunk of {len(data)} bytes is too short")
    if crc32c(bytes(data[: _HEAD.size])) != _CHECK.unpack_from(data, _HEAD.size)[0]:
        raise CorruptFrame("the head of a topic index chunk is damaged")
    magic, version, checksum, base, covered, generation, names_end, places, topics, width, lists = _HEAD.unpack_from(
        data
    )
    head = ChunkHead(base, covered, generation, names_end, places, topics, width, lists, checksum)
    if magic != _MAGIC or version != _VERSION:
        raise CorruptFrame(f"not a topic index chunk of version {_VERSION}: {magic!r} {version}")
    if head.size != len(data) or head.places > CHUNK_RECORDS or head.width not in (1, 2, 4):
        raise CorruptFrame(f"a topic index chunk of {len(data)} bytes should have {head.size}")
    return head


def check_body(data: Buffer, head: ChunkHead) -> None:
    """Test the whole chunk. Not done on opening, where it would read every file, but when a chunk is first used."""
    if crc32c(memoryview(data)[HEAD_SIZE:]) != head.checksum:
        raise CorruptFrame(f"the topic index of offsets from {head.base_offset} on is damaged")

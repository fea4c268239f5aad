"""The head of a dumped `TopicTrie` (little-endian; what follows it, and why, is in `topic_tries.py`):

0  4s  magic "MSTT"      8  u32 CRC-32 of all that follows it     16 u32 end of numbers
4  u32 version = 1      12  u32 number of topics
"""

from __future__ import annotations

import struct
import zlib

from mainstem.model.errors import CorruptFrame

DUMP_HEAD = struct.Struct("<4sII")
DUMP_COUNTS = struct.Struct("<II")
DUMP_TOPIC = struct.Struct("<IH")
DUMP_MAGIC = b"MSTT"
DUMP_VERSION = 1
TOPICS_MAX = 10_000_000


def dump_head(count: int, end: int, body: bytes | bytearray | memoryview) -> bytes:
    checksum = zlib.crc32(body, zlib.crc32(DUMP_COUNTS.pack(count, end)))
    return DUMP_HEAD.pack(DUMP_MAGIC, DUMP_VERSION, checksum) + DUMP_COUNTS.pack(count, end)


def checked_dump(data: bytes | bytearray | memoryview) -> tuple[int, int, memoryview]:
    """(count, end of numbers, body) of a dump whose checksum holds."""
    view = memoryview(data).cast("B")
    head_size = DUMP_HEAD.size + DUMP_COUNTS.size
    if len(view) < head_size:
        raise CorruptFrame(f"a topic dictionary of {len(view)} bytes is too short")
    magic, version, checksum = DUMP_HEAD.unpack_from(view)
    count, end = DUMP_COUNTS.unpack_from(view, DUMP_HEAD.size)
    if magic != DUMP_MAGIC or version != DUMP_VERSION:
        raise CorruptFrame(f"not a topic dictionary of version {DUMP_VERSION}: {bytes(view[:8])!r}")
    if zlib.crc32(view[DUMP_HEAD.size :]) != checksum or count >= max(end, 1):
        raise CorruptFrame("the topic dictionary is damaged: its checksum does not match")
    return count, end, view[head_size:]

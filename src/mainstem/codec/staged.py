"""What a Spark task stages: batches for topics, in one file, checked as a whole.

0  4s   magic "MSG1"
4  u32  items
8       per item:  u32 batch size · u16 topic size · u8 flags (1: records name their topic) · i32 partition
                   · topic (canonical, UTF-8) · a RecordBatch v2 with base offset 0
..  u32  crc32c of all before it
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mainstem.codec.batch import crc32c
from mainstem.model.errors import CorruptFrame

MAGIC = b"MSG1"
HEAD = struct.Struct(">4sI")
ITEM = struct.Struct(">IHBi")
NAMES_TOPIC = 1


@dataclass(frozen=True, slots=True)
class StagedBatch:
    topic: bytes
    partition: int
    names_topic: bool
    batch: bytes | memoryview


def encode_staged(items: Sequence[StagedBatch]) -> bytes:
    parts = [HEAD.pack(MAGIC, len(items))]
    for item in items:
        flags = NAMES_TOPIC if item.names_topic else 0
        parts += (ITEM.pack(len(item.batch), len(item.topic), flags, item.partition), item.topic, bytes(item.batch))
    data = b"".join(parts)
    return data + crc32c(data).to_bytes(4, "big")


def decode_staged(data: bytes | memoryview) -> Iterator[StagedBatch]:
    """The items in order; CorruptFrame, before the first, if the whole does not validate."""
    view = memoryview(data)
    if len(view) < HEAD.size + 4 or crc32c(view[:-4]) != int.from_bytes(view[-4:], "big"):
        raise CorruptFrame("staged data is damaged: its checksum does not match")
    magic, count = HEAD.unpack_from(view)
    if magic != MAGIC:
        raise CorruptFrame("staged data does not begin with MSG1")
    at, end = HEAD.size, len(view) - 4
    for _ in range(count):
        if at + ITEM.size > end:
            raise CorruptFrame("staged data is cut off")
        size, topic_size, flags, partition = ITEM.unpack_from(view, at)
        at += ITEM.size
        if at + topic_size + size > end:
            raise CorruptFrame("staged data is cut off")
        topic = bytes(view[at : at + topic_size])
        at += topic_size
        yield StagedBatch(topic, partition, bool(flags & NAMES_TOPIC), view[at : at + size])
        at += size

"""Which topic a number of the index means, and which chunks there are: one file, `names`, of blocks.

The first block is a snapshot; each checkpoint appends one with what changed. A block (little-endian):

    0  4s  magic "MSTN"                     48 u64 bytes of the dictionary (TopicTrie.dump; snapshot only)
    4  u32 CRC-32C of all that follows      56 u64 bytes of additions
    8  u64 size of the block                64 u32 number of removals
    16 u64 generation of the file           68 u32 number of chunks
    24 i64 start offset                     72 u32 number of last offsets (snapshot only)
    32 i64 covered end offset               76 u32 0
    40 u64 0
    80 dictionary · additions: u32 number, u16 length, name · removals: u32 · chunks written: u32 (base offset // 2^20)
       · last offsets: i64 by topic number

A torn block ends the file: what came after it is lost, and chunks that need it do not count (topic_index_format.py).
"""

from __future__ import annotations

import contextlib
import os
import struct
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mainstem.codec.batch import crc32c
from mainstem.model.errors import CorruptFrame, NotFound
from mainstem.model.topic_tries import TopicTrie
from mainstem.storage.disk import sync_data
from mainstem.storage.steady import write_steadily

_HEAD = struct.Struct("<4sIQQqqQQQIIII")
_NAME = struct.Struct("<IH")
_MAGIC = b"MSTN"
_CHECKED_FROM = 8


@dataclass(slots=True)
class NamesState:
    """What the file says, besides the topics themselves."""

    start_offset: int = 0
    covered_end: int = 0
    chunks: set[int] = field(default_factory=set)
    later_chunks: set[int] = field(default_factory=set)  # of `chunks`, those written after the snapshot
    last_offsets: array[int] = field(default_factory=lambda: array("q"))


class NamesFile:
    """`generation` counts the snapshots, `end` the bytes of the blocks that count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.generation = 0
        self.end = 0
        self.snapshot_end = 0

    def load(self, topics: TopicTrie) -> NamesState:
        """Fill `topics`. No file, or one whose snapshot is damaged, is an empty index."""
        state = NamesState()
        if not self._path.exists():
            return state
        data = memoryview(self._path.read_bytes())
        while (block := self._block(data)) is not None:
            try:
                self._apply(block, topics, state)
            except CorruptFrame:
                break
            self.end += len(block)
            self.snapshot_end = self.snapshot_end or self.end
        if self.end == 0:
            topics.load(TopicTrie().dump())
            return NamesState()
        if self.end < len(data):
            os.truncate(self._path, self.end)
        return state

    def append(
        self,
        topics: TopicTrie,
        added: Iterable[int],
        removed: Iterable[int],
        chunks: Iterable[int],
        start_offset: int,
        covered_end: int,
    ) -> None:
        """Durable once this returns."""
        block = _pack(
            self.generation, start_offset, covered_end, b"", _additions(topics, added), removed, chunks, array("q")
        )
        with self._path.open("r+b") as file:
            file.seek(self.end)
            file.write(block)
            file.flush()
            sync_data(file.fileno())
        self.end += len(block)

    def rewrite(
        self, topics: TopicTrie, chunks: Iterable[int], last: array[int], start_offset: int, covered_end: int
    ) -> None:
        """Begin a new generation with a snapshot of everything."""
        block = _pack(self.generation + 1, start_offset, covered_end, bytes(topics.dump()), b"", (), chunks, last)
        write_file(self._path, [block])
        self.generation += 1
        self.end = self.snapshot_end = len(block)

    def _block(self, data: memoryview) -> memoryview | None:
        """The next block, whole and in its place, or None."""
        if len(data) < self.end + _HEAD.size:
            return None
        magic, checksum, size, generation, *_ = _HEAD.unpack_from(data, self.end)
        block = data[self.end : self.end + size]
        if magic != _MAGIC or size < _HEAD.size or len(block) != size:
            return None
        if self.end and generation != self.generation:
            return None
        return block if crc32c(block[_CHECKED_FROM:]) == checksum else None

    def _apply(self, block: memoryview, topics: TopicTrie, state: NamesState) -> None:
        _, _, _, generation, start, covered, _, dump_bytes, name_bytes, gone, chunks, lasts, _ = _HEAD.unpack_from(
            block
        )
        at = _HEAD.size
        dictionary, at = block[at : at + dump_bytes], at + dump_bytes
        names, at = block[at : at + name_bytes], at + name_bytes
        removed, at = array("I", bytes(block[at : at + 4 * gone])), at + 4 * gone
        written, at = array("I", bytes(block[at : at + 4 * chunks])), at + 4 * chunks
        if self.end == 0:
            topics.load(dictionary)
            state.last_offsets = array("q", bytes(block[at : at + 8 * lasts]))
        else:
            state.later_chunks.update(written)
        for number in removed:
            _forget(number, topics, state)
        if not topics.put_all(names):
            raise CorruptFrame(f"{self._path}: a block's count of names does not match its content")
        state.chunks.update(written)
        state.start_offset, state.covered_end = start, covered
        self.generation = generation


def write_file(path: Path, parts: Iterable[bytes]) -> None:
    """The whole file or, after a crash, the one before it."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        write_steadily(file.fileno(), parts)
        sync_data(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _forget(number: int, topics: TopicTrie, state: NamesState) -> None:
    with contextlib.suppress(NotFound):  # it came and went between two checkpoints
        topics.remove(number)
    if number < len(state.last_offsets):
        state.last_offsets[number] = -1


def _additions(topics: TopicTrie, numbers: Iterable[int]) -> bytes:
    packed = bytearray()
    for number in numbers:
        try:
            name = topics.name(number)
        except NotFound:
            continue  # forgotten again since
        packed += _NAME.pack(number, len(name))
        packed += name
    return bytes(packed)


def _pack(
    generation: int,
    start_offset: int,
    covered_end: int,
    dictionary: bytes,
    additions: bytes,
    removed: Iterable[int],
    chunks: Iterable[int],
    last: array[int],
) -> bytes:
    gone, written = array("I", removed), array("I", sorted(chunks))
    body = dictionary + additions + gone.tobytes() + written.tobytes() + last.tobytes()
    head = _HEAD.pack(
        _MAGIC,
        0,
        _HEAD.size + len(body),
        generation,
        start_offset,
        covered_end,
        0,
        len(dictionary),
        len(additions),
        len(gone),
        len(written),
        len(last),
        0,
    )
    checksum = crc32c(body, crc32c(head[_CHECKED_FROM:]))
    return head[:4] + struct.pack("<I", checksum) + head[_CHECKED_FROM:] + body

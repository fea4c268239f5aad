"""A bundle: one object of the store that carries frames of many logs.

    0      frames of the first piece, of the second, …           pieces in order of their log and offset
    ..     the pieces' indexes (segment/index.py), in the same order
    -- the body ends here; it is read in chunks of `chunk_bytes`, each with a CRC-32C of its own --
    ..     footer: one line of JSON: version, run, sequence, level, size (of the frames), index_size, chunk_bytes, crcs,
           pieces: a list of the fields of `Piece` each
    -12    u32 bytes of the footer, u32 CRC-32C of the footer, 4s magic "MSB1"            (big-endian)

A *piece* is a run of frames of one log, verbatim: their checksums bind log and offset already. Keys are never used twice:

    <prefix>/bundles/<run>/<sequence, 20 digits>      as published; a run is one life of a writer, sequences have no gap
    <prefix>/merged/<32 hex digits>                   merged from others, each log's frames together

The writer commits bundles in order of their sequence, so those of a run that were acked are a prefix of it: whoever has only
the bucket finds them by asking for one after the other until one is missing. Nothing is ever listed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mainstem.codec.batch import frame_heads
from mainstem.storage.engine import Buffer
from mainstem.storage.segment.index import SparseIndex, Summary
from mainstem.storage.tier.objects import checksums, encode_tail, parse_tail

MAGIC = b"MSB1"
VERSION = 1
CHUNK_BYTES = 1 << 20  # of what was published: small, as a reader of one log wants little of it
MERGED_CHUNK_BYTES = 4 << 20
MANY_LOGS = -1
FINAL = 255  # a level that is merged no more: it holds one log's frames only


class Piece(NamedTuple):
    """Frames of one log in a bundle. It covers [base_offset, end_offset): others of these offsets are nowhere."""

    log_id: int
    part: int  # base offset of the part that it belongs to
    generation: int  # of that part
    base_offset: int
    end_offset: int
    first_stamp: int
    last_stamp: int
    position: int
    size: int
    index_position: int
    index_size: int


class Content(NamedTuple):
    """What becomes a piece."""

    log_id: int
    part: int
    generation: int
    base_offset: int
    end_offset: int
    first_stamp: int
    last_stamp: int
    frames: Sequence[Buffer]
    sparse: SparseIndex


@dataclass(frozen=True, slots=True)
class BundleFooter:
    run: str
    sequence: int
    level: int  # 0: as published; one more for each time it was merged
    size: int
    index_size: int
    chunk_bytes: int
    crcs: tuple[int, ...]
    pieces: tuple[Piece, ...]  # empty where the registry made it: pieces are rows of their own there

    @property
    def log_id(self) -> int:
        return MANY_LOGS

    @property
    def body_size(self) -> int:
        return self.size + self.index_size

    @property
    def holds(self) -> str:
        return "frames of several logs"

    def chunk_size(self, number: int) -> int:
        return min(self.chunk_bytes, self.body_size - number * self.chunk_bytes)

    def document(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "pieces"}

    def encode(self) -> bytes:
        return encode_tail({"version": VERSION, **self.document(), "pieces": self.pieces}, MAGIC)


@dataclass(frozen=True, slots=True)
class Bundle:
    """One that is registered, or about to be."""

    id: str
    key: str
    footer: BundleFooter


def make_bundle(
    contents: Iterable[Content], run: str, sequence: int, *, level: int = 0, chunk_bytes: int = CHUNK_BYTES
) -> tuple[Bundle, bytearray]:
    """The bundle, and its bytes with the footer behind. Contents come in order of their log and offset."""
    body, indexes, pieces = bytearray(), bytearray(), list[Piece]()
    for one in contents:
        position = len(body)
        for buffer in one.frames:
            body += buffer
        size = len(body) - position
        stamps = one.first_stamp, one.last_stamp
        index = one.sparse.encode(Summary(one.log_id, one.base_offset, one.end_offset, *stamps, size))
        pieces.append(Piece(*one[:7], position, size, len(indexes), len(index)))
        indexes += index
    size = len(body)
    body += indexes
    placed = tuple(piece._replace(index_position=size + piece.index_position) for piece in pieces)
    crcs = checksums(memoryview(body), chunk_bytes)
    footer = BundleFooter(run, sequence, level, size, len(indexes), chunk_bytes, crcs, placed)
    body += footer.encode()
    name = uuid.uuid4().hex
    return Bundle(name, f"merged/{name}" if level else bundle_key(run, sequence), footer), body


def bundle_key(run: str, sequence: int) -> str:
    return f"bundles/{run}/{sequence:020d}"


def parse_bundle(key: str, stored: bytes) -> Bundle:
    """Of an object's last bytes, or all of them; CorruptFrame where they are not the end of a bundle."""
    told = parse_tail(stored, key, MAGIC, VERSION)
    return Bundle(uuid.uuid4().hex, key, footer_of(told))


def footer_of(told: dict[str, Any]) -> BundleFooter:
    pieces = tuple(Piece(*one) for one in told.get("pieces", ()))
    return BundleFooter(**{**told, "crcs": tuple(told["crcs"]), "pieces": pieces})


def index_frames(log_id: int, base_offset: int, frames: Iterable[Buffer]) -> SparseIndex:
    """The index of frames that lie one behind the other."""
    index, at = SparseIndex(base_offset), 0
    for buffer in frames:
        for head in frame_heads(buffer, log_id):
            index.add(at, head.base_offset, head.stamp)
            at += head.size
    return index

"""One object of the store: a sealed part of a log, verbatim, with what is needed to read it.

    0          frames, exactly the segment file's bytes        `size` bytes
    ..         its index file's bytes (segment/index.py)       `index_size` bytes
    -- the body ends here; it is read in chunks of `chunk_bytes`, each with a CRC-32C of its own --
    ..         topics of a shared log's records (topics.py)    `topics_size` bytes; 0 of other logs
    ..         footer: one line of JSON, the fields of `Footer`
    -12        u32 bytes of the footer, u32 CRC-32C of the footer, 4s magic "MSO1"      (big-endian)

An object is written once under a key that is never used again, so whatever was read of it stays true:

    <prefix>/parts/<log id>/<first offset, 20 digits>.<generation>.<32 hex digits>

The registry (`registry.py`) knows all that the footer says; the footer is for who has only the bucket.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from mainstem.codec.batch import crc32c
from mainstem.model.errors import CorruptFrame
from mainstem.storage.engine import Part

CHUNK_BYTES = 4 << 20
MAGIC = b"MSO1"
TRAILER = struct.Struct(">II4s")
VERSION = 1


class Body(Protocol):
    """What a reader must know of an object's body."""

    @property
    def body_size(self) -> int: ...

    @property
    def chunk_bytes(self) -> int: ...

    @property
    def crcs(self) -> tuple[int, ...]: ...

    @property
    def log_id(self) -> int:
        """-1: of many logs."""

    @property
    def holds(self) -> str:
        """In words, for who is told that it is damaged."""

    def chunk_size(self, number: int) -> int: ...

    def document(self) -> dict[str, Any]:
        """As the registry keeps it."""


class Stored(Protocol):
    """An object of the store, of whatever format."""

    @property
    def id(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def footer(self) -> Body: ...


@dataclass(frozen=True, slots=True)
class Footer:
    log_id: int
    base_offset: int
    end_offset: int
    generation: int
    first_stamp: int
    last_stamp: int
    size: int  # of the frames
    index_size: int
    topics_size: int
    chunk_bytes: int
    crcs: tuple[int, ...]  # of the body's chunks

    @property
    def body_size(self) -> int:
        return self.size + self.index_size

    @property
    def holds(self) -> str:
        return f"offsets {self.base_offset}..{self.end_offset} of log {self.log_id}"

    def chunk_size(self, number: int) -> int:
        return min(self.chunk_bytes, self.body_size - number * self.chunk_bytes)

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def encode(self) -> bytes:
        return encode_tail({"version": VERSION, **asdict(self)}, MAGIC)


@dataclass(frozen=True, slots=True)
class Object:
    """One that is registered."""

    id: str
    key: str
    footer: Footer


def new_object(part: Part, footer: Footer) -> Object:
    """Under a key that nobody has used: not even a broker whose registry is an old copy."""
    name = uuid.uuid4().hex
    return Object(name, f"parts/{footer.log_id}/{part.base_offset:020d}.{part.generation}.{name}", footer)


def make_footer(
    log_id: int, part: Part, body: memoryview, index_size: int, topics_size: int = 0, chunk_bytes: int = CHUNK_BYTES
) -> Footer:
    """`body`: frames and index; the topics follow it."""
    return Footer(
        log_id=log_id,
        base_offset=part.base_offset,
        end_offset=part.end_offset,
        generation=part.generation,
        first_stamp=part.first_stamp,
        last_stamp=part.last_stamp,
        size=len(body) - index_size,
        index_size=index_size,
        topics_size=topics_size,
        chunk_bytes=chunk_bytes,
        crcs=checksums(body, chunk_bytes),
    )


def parse_footer(tail: bytes, name: str) -> Footer:
    """Of an object's last bytes; CorruptFrame where they are not the end of one of ours."""
    told = parse_tail(tail, name, MAGIC, VERSION)
    return Footer(**{**told, "crcs": tuple(told["crcs"])})


def encode_tail(told: dict[str, Any], magic: bytes) -> bytes:
    body = json.dumps(told, separators=(",", ":")).encode() + b"\n"
    return body + TRAILER.pack(len(body), crc32c(body), magic)


def parse_tail(tail: bytes, name: str, magic: bytes, version: int) -> dict[str, Any]:
    """What a footer says, without its version."""
    if len(tail) < TRAILER.size:
        raise CorruptFrame(f"{name}: {len(tail)} bytes are no object of ours")
    size, checksum, found = TRAILER.unpack_from(tail, len(tail) - TRAILER.size)
    body = tail[-TRAILER.size - size : -TRAILER.size]
    if found != magic or len(body) != size or crc32c(body) != checksum:
        raise CorruptFrame(f"{name}: its footer does not validate")
    told: dict[str, Any] = json.loads(body)
    if told.pop("version") != version:
        raise CorruptFrame(f"{name}: written by a newer Mainstem")
    return told


def checksums(body: memoryview, chunk_bytes: int) -> tuple[int, ...]:
    return tuple(crc32c(chunk) for chunk in _chunks(body, chunk_bytes))


def _chunks(body: memoryview, chunk_bytes: int) -> Iterator[memoryview]:
    for at in range(0, len(body), chunk_bytes):
        yield body[at : at + chunk_bytes]

"""The topics of a shared log's part, behind its body in the same object: who has only the bucket need not read the frames
to know which topics they hold. Little-endian:

    0  4s  magic "MSOT"                        24 u32 topics, t
    4  u32 CRC-32C of all that follows         28 u32 places, p
    8  i64 first offset of the part            32 u32 bytes of a place: 1, 2 or 4
    16 u32 version = 1                         36 u32 bytes of the names
    20 u32 stretches, s                        40 u32 bytes of the places, deflated
    44 stretches: s × (i64 first offset, u32 offsets, u32 1: each has a place, 0: none has a topic)
    .. names: t × (u16 length, name)
    .. places: for each offset 0 (no topic) or which of the names, from 1

Derived data: whatever does not validate is not believed, and the frames are read instead. Numbers here are the part's own:
the index of the log that reads it gives its own.

The same bytes stay on the local disk, too, until the files of the topic index cover the part. A start after a crash then
knows the topics of a part whose object is missing, or whose store does not answer:

    <data>/logs/<id>/topics/<end offset of the part, 20 digits>.<object id>.part
"""

from __future__ import annotations

import logging
import struct
import zlib
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.codec.batch import KIND_DATA, crc32c, frame_heads
from mainstem.model.errors import CorruptFrame
from mainstem.storage.tier.store import StoreAway
from mainstem.storage.topic_columns import TopicColumn, empty_column, frame_column

if TYPE_CHECKING:
    from mainstem.storage.tier.cache import ChunkCache
    from mainstem.storage.tier.objects import Object

logger = logging.getLogger("mainstem.tier")

KEPT = "*.part"
_HEAD = struct.Struct("<4sIqIIIIIII")
_STRETCH = struct.Struct("<qII")
_NAME = struct.Struct("<H")
_MAGIC, _VERSION = b"MSOT", 1
_CHECKED_FROM = 8
_WIDTHS = (1, 2, 4)
AHEAD = 8  # parts whose topics are on their way at once
PLACES_MAX = 1 << 28  # more cannot be in a segment
CHECKED_AT_ONCE = 1 << 16


def encode_topics(body: memoryview, log_id: int, base_offset: int, topic_of: dict[int, bytes]) -> bytes:
    """Of a part's frames. CorruptFrame where one does not validate."""
    known, places, at = {b"": 0}, array("I"), 0
    stretches: list[list[int]] = []
    for head in frame_heads(body, log_id):
        has_places = int(head.kind == KIND_DATA)
        if has_places:
            places += frame_column(head, body[at : at + head.size], log_id, topic_of, known)
        at += head.size
        last = stretches[-1] if stretches else None
        if last is not None and last[0] + last[1] == head.base_offset and last[2] == has_places == 1:
            last[1] += head.count
        else:
            stretches.append([head.base_offset, head.count, has_places])
    names = b"".join(_NAME.pack(len(name)) + name for name in known if name)
    width = 1 if len(known) <= 1 << 8 else 2 if len(known) <= 1 << 16 else 4
    packed = zlib.compress(_narrow(places, width), 1)
    sizes = (len(stretches), len(known) - 1, len(places), width, len(names), len(packed))
    head_bytes = _HEAD.pack(_MAGIC, 0, base_offset, _VERSION, *sizes)
    rest = b"".join((head_bytes[_CHECKED_FROM:], *(_STRETCH.pack(*one) for one in stretches), names, packed))
    return _MAGIC + struct.pack("<I", crc32c(rest)) + rest


def decode_topics(data: bytes, base_offset: int) -> list[TopicColumn]:
    """CorruptFrame unless all of it is as it was written, about the part that begins there."""
    if len(data) < _HEAD.size or crc32c(memoryview(data)[_CHECKED_FROM:]) != int.from_bytes(data[4:8], "little"):
        raise CorruptFrame("the topics of a part do not match their checksum")
    magic, _, base, version, stretch_count, topics, count, width, name_bytes, packed_bytes = _HEAD.unpack_from(data)
    names_at = _HEAD.size + stretch_count * _STRETCH.size
    if magic != _MAGIC or version != _VERSION or base != base_offset or width not in _WIDTHS or count > PLACES_MAX:
        raise CorruptFrame(f"these are not the topics of the part from offset {base_offset} on, version {_VERSION}")
    if names_at + name_bytes + packed_bytes != len(data):
        raise CorruptFrame("the topics of a part are cut off")
    names = _names(data[names_at : names_at + name_bytes], topics)
    places = _widen(_inflate(data[names_at + name_bytes :], count * width), width)
    found, at = list[TopicColumn](), 0
    for first, offsets, has_places in _STRETCH.iter_unpack(data[_HEAD.size : names_at]):
        if has_places:
            found.append(TopicColumn(first, places[at : at + offsets], names))
            at += offsets
        else:
            found.append(empty_column(first, offsets))
    if at != count or _largest(places) >= len(names):
        raise CorruptFrame("the topics of a part do not add up")
    return found


def keep_here(directory: Path, one: Object, topics: bytes) -> None:
    """In a log's directory. It is not synced: what a power cut takes is asked of the object."""
    try:
        _place(directory, one).write_bytes(topics)
    except OSError as error:
        logger.warning("%s: the topics of its part are kept in the object only: %s", one.key, error)


def forget_kept(topics_path: Path, before_offset: int) -> None:
    """Of parts that end there or before: the files of the topic index say what they did."""
    for file in topics_path.glob(KEPT):
        end, _, _ = file.name.partition(".")
        if end.isdigit() and int(end) <= before_offset:
            file.unlink(missing_ok=True)


def _place(directory: Path, one: Object) -> Path:
    return directory / "topics" / f"{one.footer.end_offset:020d}.{one.id}.part"


def _largest(numbers: array[int]) -> int:
    """In steps of a millisecond, between which other threads may run."""
    steps = range(0, len(numbers), CHECKED_AT_ONCE)
    return max((max(numbers[at : at + CHECKED_AT_ONCE]) for at in steps), default=0)


def _names(data: bytes, count: int) -> list[bytes]:
    names, at = [b""], 0
    while at + _NAME.size <= len(data):
        (size,) = _NAME.unpack_from(data, at)
        names.append(data[at + _NAME.size : at + _NAME.size + size])
        at += _NAME.size + size
    if at != len(data) or len(names) != count + 1:
        raise CorruptFrame("the names of a part's topics do not add up")
    return names


def _inflate(data: bytes, size: int) -> bytes:
    """No more than it says: what is read from a bucket may be anything."""
    inflating = zlib.decompressobj()
    try:
        found = inflating.decompress(data, size + 1)
    except zlib.error as error:
        raise CorruptFrame(f"the topics of a part do not inflate: {error}") from error
    if len(found) != size or not inflating.eof:
        raise CorruptFrame(f"the topics of a part inflate to other than {size} bytes")
    return found


def _narrow(numbers: array[int], width: int) -> bytes:
    """Of four bytes each the first ones. By slices: they take a millisecond for a million."""
    wide, narrow = numbers.tobytes(), bytearray(len(numbers) * width)
    for byte in range(width):
        narrow[byte::width] = wide[byte::4]
    return bytes(narrow)


def _widen(narrow: bytes, width: int) -> array[int]:
    wide = bytearray(len(narrow) // width * 4)
    for byte in range(width):
        wide[byte::4] = narrow[byte::width]
    return array("I", bytes(wide))


class KeptTopics:
    """Reads the topics of many parts, one after the other: the next ones are on their way meanwhile. For a thread that may
    wait."""

    def __init__(self, cache: ChunkCache, objects: Sequence[Object], directory: Path) -> None:
        """`objects` in order of their offsets, `directory` of their log."""
        self._cache, self._directory = cache, directory
        self._away = False  # the store did not answer: it is not asked again where the local disk knows
        self._left = deque(one for one in objects if one.footer.topics_size)
        self._coming: deque[tuple[Object, Future[bytes]]] = deque()
        self.parts = 0  # whose topics were read

    def at(self, offset: int) -> tuple[list[TopicColumn], int] | None:
        """What the object that holds this offset says, else its copy here, and where its part ends; None where none does.
        Offsets grow from call to call. Without a copy: CorruptFrame if it is damaged, StoreAway if it cannot be had now.

        The object is asked first, so that one that is missing is noticed and named by the start, not by its first reader.
        """
        while True:
            self._ask()
            if not self._coming or self._coming[0][0].footer.base_offset > offset:
                return None
            one, data = self._coming.popleft()
            if one.footer.end_offset > offset:
                return self._decoded(one, data), one.footer.end_offset

    def _decoded(self, one: Object, data: Future[bytes]) -> list[TopicColumn]:
        here = self._kept_here(one) if self._away else None
        if here is not None:
            return here
        try:
            found = decode_topics(data.result(), one.footer.base_offset)
        except CancelledError:
            raise StoreAway("the broker is stopping") from None
        except (CorruptFrame, StoreAway) as error:
            self._away = self._away or isinstance(error, StoreAway)
            here = self._kept_here(one)
            if here is None:
                raise
            logger.error("%s: %s; the local disk has a copy of its topics, and none of its records", one.key, error)
            return here
        self.parts += 1
        return found

    def _kept_here(self, one: Object) -> list[TopicColumn] | None:
        try:
            return decode_topics(_place(self._directory, one).read_bytes(), one.footer.base_offset)
        except (OSError, CorruptFrame):
            return None

    def _ask(self) -> None:
        while self._left and len(self._coming) < AHEAD:
            one = self._left.popleft()
            self._coming.append((one, self._cache.fetch(one, one.footer.body_size, one.footer.topics_size)))


def clipped(columns: Sequence[TopicColumn], start: int, end: int) -> Iterator[TopicColumn]:
    for column in columns:
        part = column.between(start, end)
        if len(part.numbers):
            yield part

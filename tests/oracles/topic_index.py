"""The topic index in memory, in plain Python: the oracle of the compiled one.

Chunks come in two forms: `ColumnChunk`, which records are added to (the open one, one that is being repaired, or one
that waits to be packed), and `PackedChunk`, which is read only and may lie in a file. Both answer `find_one`, `scan`,
`count_one`, `count` and `numbers_between` for places from 0 on; `IndexCore` speaks offsets and puts chunks together.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

from mainstem.log.topic_index_format import (
    CHUNK_BITS,
    CHUNK_RECORDS,
    HEAD_SIZE,
    UNLIMITED,
    WAITING_MAX,
    Buffer,
    ChunkHead,
    check_body,
    pack_head,
    parse_head,
)
from mainstem.model.errors import CorruptFrame
from mainstem.model.topic_tries import TopicTrie


class ColumnChunk:
    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.column = array("I")

    @property
    def places(self) -> int:
        return len(self.column)

    def extend(self, place: int, numbers: array[int]) -> int:
        """Add from `place` on what is not there yet; returns how many of `numbers` were already there."""
        known = max(0, len(self.column) - place)
        self.column.extend([0] * (place - len(self.column)))
        self.column.extend(numbers[known:])
        return min(known, len(numbers))

    def find_one(self, number: int, start: int, end: int, limit: int, found: array[int]) -> None:
        for place in range(start, min(end, len(self.column))):
            if limit <= 0:
                return
            if self.column[place] == number:
                found.append(self.base_offset + place)
                limit -= 1

    def scan(self, bitmap: bytes, start: int, end: int, limit: int, found: array[int]) -> None:
        for place in range(start, min(end, len(self.column))):
            if limit <= 0:
                return
            if _meant(bitmap, self.column[place]):
                found.append(self.base_offset + place)
                limit -= 1

    def count_one(self, number: int, start: int, end: int) -> int:
        return self.column[start:end].count(number)

    def count(self, bitmap: bytes, start: int, end: int) -> int:
        return sum(_meant(bitmap, number) for number in self.column[start:end])

    def numbers_between(self, start: int, end: int) -> array[int]:
        """The topics of these places; each at least once."""
        return array("I", (number for number in self.column[start:end] if number))

    def memory_bytes(self) -> int:
        return 4 * len(self.column)

    def pack(self, covered_end: int, generation: int, names_end: int) -> bytes:
        lists: dict[int, list[int]] = {}
        for place, number in enumerate(self.column):
            if number:
                lists.setdefault(number, []).append(place)
        numbers = array("I", sorted(lists))
        packed, starts = bytearray(), array("I")
        for number in numbers:
            starts.append(len(packed))
            _pack_list(packed, lists[number])
        starts.append(len(packed))
        width = 1 if len(numbers) <= 0xFF else 2 if len(numbers) <= 0xFFFF else 4
        rank = {number: at + 1 for at, number in enumerate(numbers)} | {0: 0}
        column = self.column if width == 4 else array("B" if width == 1 else "H", (rank[n] for n in self.column))
        body = column.tobytes()
        body += bytes(-len(body) % 4) + numbers.tobytes() + starts.tobytes() + packed
        head = ChunkHead(
            self.base_offset, covered_end, generation, names_end, len(self.column), len(numbers), width, len(packed)
        )
        return pack_head(head, body) + body


class PackedChunk:
    def __init__(self, data: Buffer) -> None:
        self.head = parse_head(data)
        self.base_offset = self.head.base_offset
        self.places = self.head.places
        self._data = data
        view = memoryview(data)[HEAD_SIZE:]
        places = view[: self.places * self.head.width]
        self._column = places if self.head.width == 1 else places.cast("H" if self.head.width == 2 else "I")
        at = self.head.column_bytes
        self._numbers = view[at : at + 4 * self.head.topics].cast("I")
        at += 4 * self.head.topics
        self._starts = view[at : at + 4 * (self.head.topics + 1)].cast("I")
        self._lists = view[at + 4 * (self.head.topics + 1) :]

    def check(self) -> None:
        """Raise CorruptFrame unless the whole chunk is as it was written."""
        check_body(self._data, self.head)

    def unpack(self) -> ColumnChunk:
        """The same as a chunk that records can be added to."""
        chunk = ColumnChunk(self.base_offset)
        chunk.column = array("I", (self._number(value) for value in self._column))
        return chunk

    def find_one(self, number: int, start: int, end: int, limit: int, found: array[int]) -> None:
        for place in self._list(number):
            if place >= end or limit <= 0:
                return
            if place >= start:
                found.append(self.base_offset + place)
                limit -= 1

    def scan(self, bitmap: bytes, start: int, end: int, limit: int, found: array[int]) -> None:
        for place in range(start, min(end, self.places)):
            if limit <= 0:
                return
            if _meant(bitmap, self._number(self._column[place])):
                found.append(self.base_offset + place)
                limit -= 1

    def count_one(self, number: int, start: int, end: int) -> int:
        return sum(start <= place < end for place in self._list(number))

    def count(self, bitmap: bytes, start: int, end: int) -> int:
        return sum(_meant(bitmap, self._number(value)) for value in self._column[start:end])

    def numbers_between(self, start: int, end: int) -> array[int]:
        if start == 0 and end >= self.places:
            return array("I", self._numbers)
        return array("I", (self._number(value) for value in self._column[start:end] if value))

    def memory_bytes(self) -> int:
        return len(self._data) if isinstance(self._data, bytes) else 0

    def _number(self, value: int) -> int:
        return value if self.head.width == 4 or value == 0 else self._numbers[value - 1]

    def _list(self, number: int) -> Iterator[int]:
        rank = bisect_left(self._numbers, number)
        if rank == len(self._numbers) or self._numbers[rank] != number:
            return
        values = _varints(self._lists[self._starts[rank] : self._starts[rank + 1]])
        next(values)
        place = 0
        for distance in values:
            place += distance
            yield place


class IndexCore:
    """All chunks of one log, by their number (offset // 2^20), and for each topic the offset of its last record."""

    def __init__(self, topics: TopicTrie) -> None:
        self.topics = topics
        self.start_offset = 0
        self.covered_end = 0
        self.chunks: dict[int, ColumnChunk | PackedChunk] = {}
        self.waiting: list[int] = []
        self.lost: set[int] = set()
        self.open_id = -1
        self._last = array("q")
        self._fresh = array("I")
        self._unchecked: set[int] = set()

    def add(self, base_offset: int, numbers: memoryview | array[int]) -> None:
        """One number per offset from `base_offset` on, 0 for a record without a topic. What is known already stays."""
        offset, at, values = base_offset, 0, array("I", numbers)
        while at < len(values):
            chunk_id = offset >> CHUNK_BITS
            count = min(len(values) - at, ((chunk_id + 1) << CHUNK_BITS) - offset)
            chunk = self._writable(chunk_id)
            if chunk is not None:
                self._extend(chunk, offset, values[at : at + count])
            offset, at = offset + count, at + count
        self.covered_end = max(self.covered_end, offset)

    def add_packed(self, base_offset: int, numbers: bytes) -> None:
        """The same, four bytes for each, as the machine orders them."""
        self.add(base_offset, memoryview(numbers).cast("I"))
        while len(self.waiting) > WAITING_MAX:
            self.pack_first()

    def _writable(self, chunk_id: int) -> ColumnChunk | None:
        """The chunk to add to: the open one, or one that was lost and is being repaired. None if it is complete."""
        if chunk_id > self.open_id:
            if self.open_id >= 0:
                self.waiting.append(self.open_id)
            self.open_id = chunk_id
            self.chunks[chunk_id] = ColumnChunk(chunk_id << CHUNK_BITS)
        elif chunk_id in self.lost:
            self.lost.discard(chunk_id)
            self.chunks[chunk_id] = ColumnChunk(chunk_id << CHUNK_BITS)
            self.waiting.append(chunk_id)
        chunk = self.chunks.get(chunk_id)
        return chunk if isinstance(chunk, ColumnChunk) else None

    def _extend(self, chunk: ColumnChunk, offset: int, numbers: array[int]) -> None:
        known = chunk.extend(offset - chunk.base_offset, numbers)
        for at in range(max(known, self.start_offset - offset), len(numbers)):
            number = numbers[at]
            if number:
                if number >= len(self._last):
                    self._last.extend([-1] * (number + 1 - len(self._last)))
                if self._last[number] < 0:
                    self._fresh.append(number)
                self._last[number] = max(self._last[number], offset + at)

    def pack_first(self) -> None:
        """Pack the chunk that has waited longest, in memory; an index with files writes it there instead."""
        chunk_id = self.waiting.pop(0)
        chunk = self.chunks.get(chunk_id)
        if isinstance(chunk, ColumnChunk):
            self.chunks[chunk_id] = PackedChunk(chunk.pack(self.end_of(chunk_id), 0, 0))

    def end_of(self, chunk_id: int) -> int:
        """Up to where the chunk's offsets are covered."""
        return self.covered_end if chunk_id == self.open_id else (chunk_id + 1) << CHUNK_BITS

    def last_offset(self, number: int) -> int:
        """The offset of the topic's last record, -1 if there is none. After a crash possibly a little too far on."""
        return self._last[number] if 0 < number < len(self._last) else -1

    def find_one(self, number: int, start: int, end: int, limit: int = UNLIMITED) -> array[int]:
        """The offsets of one topic's records: cost follows what is found."""
        found = array("q")
        end = min(end, self.last_offset(number) + 1)
        for chunk, first, last in self._between(start, end):
            if len(found) < limit:
                chunk.find_one(number, first, last, limit - len(found), found)
        return found

    def find_many(self, bitmap: Buffer, start: int, end: int, limit: int = UNLIMITED) -> tuple[array[int], int]:
        """The offsets of the records of all topics whose bit is set, and up to where was searched."""
        found, bits = array("q"), bytes(bitmap)
        for chunk, first, last in self._between(start, end):
            if len(found) < limit:
                chunk.scan(bits, first, last, limit - len(found), found)
        if len(found) >= limit:
            return found, found[-1] + 1 if found else start
        return found, max(start, min(end, self.covered_end))

    def count_one(self, number: int, start: int, end: int) -> int:
        end = min(end, self.last_offset(number) + 1)
        return sum(chunk.count_one(number, first, last) for chunk, first, last in self._between(start, end))

    def count(self, bitmap: Buffer, start: int, end: int) -> int:
        bits = bytes(bitmap)
        return sum(chunk.count(bits, first, last) for chunk, first, last in self._between(start, end))

    def trim(self, before_offset: int) -> list[int]:
        """Forget all offsets below; returns the topics of which nothing is left."""
        gone: list[int] = []
        for chunk, first, last in list(self._between(self.start_offset, before_offset, lost_too=True)):
            for number in chunk.numbers_between(first, last):
                if 0 <= self._last[number] < before_offset:
                    self._last[number] = -1
                    gone.append(number)
        self.start_offset = max(self.start_offset, before_offset)
        for chunk_id in [c for c in self.chunks if (c + 1) << CHUNK_BITS <= before_offset]:
            del self.chunks[chunk_id]
        self.waiting = [c for c in self.waiting if c in self.chunks]
        self.lost = {c for c in self.lost if (c + 1) << CHUNK_BITS > before_offset}
        return gone

    def memory_bytes(self) -> int:
        """Without the trie of topics."""
        return 8 * len(self._last) + 4 * len(self._fresh) + sum(c.memory_bytes() for c in self.chunks.values())

    def _between(
        self, start: int, end: int, *, lost_too: bool = False
    ) -> Iterator[tuple[ColumnChunk | PackedChunk, int, int]]:
        """The chunks that hold offsets of the range, each with the places it begins and ends at."""
        start, end = max(start, self.start_offset), min(end, self.covered_end)
        while start < end:
            chunk_id = start >> CHUNK_BITS
            base = chunk_id << CHUNK_BITS
            stop = min(end, base + CHUNK_RECORDS)
            if chunk_id in self.lost and not lost_too:
                raise CorruptFrame(f"the topic index of offsets {base} to {base + CHUNK_RECORDS} must be rebuilt")
            chunk = self.chunks.get(chunk_id)
            if chunk is not None:
                self._check(chunk_id, chunk)
                yield chunk, start - base, stop - base
            start = stop

    def _check(self, chunk_id: int, chunk: ColumnChunk | PackedChunk) -> None:
        if chunk_id in self._unchecked and isinstance(chunk, PackedChunk):
            self._unchecked.discard(chunk_id)
            try:
                chunk.check()
            except CorruptFrame:
                self.lose(chunk_id)
                raise

    def lose(self, chunk_id: int) -> None:
        """A chunk turned out to be damaged: it must be added again."""
        self.chunks.pop(chunk_id, None)
        self.lost.add(chunk_id)

    # -- for the files -----------------------------------------------------------------------------------------------

    def take_fresh(self) -> array[int]:
        """The topics that came (again) since the last call."""
        fresh, self._fresh = self._fresh, array("I")
        return fresh

    def last_offsets(self) -> array[int]:
        return self._last[:]

    def restore(self, last_offsets: array[int]) -> None:
        self._last = array("q", last_offsets)

    def put_chunk(self, chunk: PackedChunk, *, checked: bool) -> None:
        chunk_id = chunk.base_offset >> CHUNK_BITS
        self.chunks[chunk_id] = chunk
        if not checked:
            self._unchecked.add(chunk_id)

    def reopen(self, chunk_id: int) -> None:
        """Go on adding to the last chunk."""
        chunk = self.chunks[chunk_id]
        self._check(chunk_id, chunk)
        self.chunks[chunk_id] = column = chunk.unpack() if isinstance(chunk, PackedChunk) else chunk
        self.open_id = chunk_id
        self.forget_beyond(column.base_offset)
        self._last.extend([-1] * (self.topics.numbers_end - len(self._last)))
        for place, number in enumerate(column.column):
            if number and column.base_offset + place >= self.start_offset:
                self._last[number] = column.base_offset + place

    def forget_beyond(self, end: int) -> None:
        """No topic's last record is known to be at `end` or further on."""
        for number, last in enumerate(self._last):
            if last >= end:
                self._last[number] = end - 1

    def unseen(self, numbers_end: int) -> list[int]:
        """Numbers below `numbers_end` without a record."""
        return [number for number in range(1, numbers_end) if self.last_offset(number) < 0]

    def learn_last(self, chunk_id: int) -> None:
        """Take from a chunk's topics that their last record is no further back than its end."""
        end = self.end_of(chunk_id)
        self._last.extend([-1] * (self.topics.numbers_end - len(self._last)))
        for number in self.chunks[chunk_id].numbers_between(0, CHUNK_RECORDS):
            if number < len(self._last):  # the chunk is not checked yet: believe nothing that makes us allocate
                self._last[number] = max(self._last[number], end - 1)


def _meant(bitmap: bytes, number: int) -> bool:
    return number != 0 and number >> 3 < len(bitmap) and bitmap[number >> 3] >> (number & 7) & 1 == 1


def _pack_list(packed: bytearray, places: list[int]) -> None:
    packed += _varint(len(places))
    before = 0
    for place in places:
        packed += _varint(place - before)
        before = place


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varints(data: memoryview) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0

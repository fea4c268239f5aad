# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The topic index in memory. The plain `tests/oracles/topic_index.py` says the same."""

from array import array

from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from mainstem.log._topic_chunks cimport BITS, DENSE, RECORDS, Chunk, ColumnChunk, Offsets, PackedChunk

from mainstem.log.topic_index_format import UNLIMITED, WAITING_MAX
from mainstem.model.errors import CorruptFrame

cdef int64_t _UNLIMITED = UNLIMITED
cdef int _WAITING_MAX = WAITING_MAX


cdef class IndexCore:
    """All chunks of one log, by their number (offset // 2^20), and for each topic the offset of its last record."""

    def __init__(self, topics):
        self.topics = topics
        self.chunks = {}
        self.waiting = []
        self.lost = set()
        self.unchecked = set()
        self.open_id = -1

    def __dealloc__(self):
        PyMem_RawFree(self.last)
        PyMem_RawFree(self.fresh)

    def add(self, int64_t base_offset, const uint32_t[::1] numbers not None):
        """One number per offset from `base_offset` on, 0 for a record without a topic. What is known already stays."""
        if numbers.shape[0]:
            self.add_c(base_offset, &numbers[0], numbers.shape[0])

    def add_packed(self, int64_t base_offset, bytes numbers not None):
        """The same, four bytes for each, as the machine orders them."""
        self.add_c(base_offset, <const uint32_t*><char*>numbers, len(numbers) // <int64_t>sizeof(uint32_t))

    cdef int add_c(self, int64_t base_offset, const uint32_t* numbers, int64_t count) except -1:
        cdef int64_t offset = base_offset, part
        cdef ColumnChunk chunk
        while count > 0:
            part = min(count, ((offset >> BITS) + 1 << BITS) - offset)
            chunk = self.writing
            if chunk is None or chunk.base_offset != offset >> BITS << BITS:
                chunk = self.writable(offset >> BITS)
            if chunk is not None:
                self.extend(chunk, offset, numbers, part)
            offset += part
            numbers += part
            count -= part
        self.covered_end = max(self.covered_end, offset)
        while len(self.waiting) > _WAITING_MAX:
            self.pack_first()
        return 0

    cdef ColumnChunk writable(self, int64_t chunk_id):
        if chunk_id > self.open_id:
            if self.open_id >= 0:
                self.waiting.append(self.open_id)
            self.open_id = chunk_id
            self.chunks[chunk_id] = ColumnChunk(chunk_id << BITS)
        elif chunk_id in self.lost:
            self.lost.discard(chunk_id)
            self.chunks[chunk_id] = ColumnChunk(chunk_id << BITS)
            self.waiting.append(chunk_id)
        chunk = self.chunks.get(chunk_id)
        self.writing = chunk if type(chunk) is ColumnChunk else None
        return self.writing

    cdef int extend(self, ColumnChunk chunk, int64_t offset, const uint32_t* numbers, int64_t count) except -1:
        cdef int64_t place = offset - chunk.base_offset, at
        cdef int64_t first = max(<int64_t>0, <int64_t>chunk.place_count - place)
        cdef int64_t base = chunk.base_offset
        cdef uint32_t number
        chunk.skip_to(place)
        for at in range(first, count):
            number = numbers[at]
            chunk.column[place + at] = number
            chunk.previous[place + at] = 0
            if number and offset + at >= self.start_offset:
                if number >= self.last_capacity:
                    self.know(number)
                if self.last[number] >= base:
                    if self.last[number] < offset + at:
                        chunk.previous[place + at] = <uint32_t>(self.last[number] - base) + 1
                elif self.last[number] < 0:
                    if self.fresh_count == self.fresh_capacity:
                        self.grow_fresh()
                    self.fresh[self.fresh_count] = number
                    self.fresh_count += 1
                if self.last[number] < offset + at:
                    self.last[number] = offset + at
        if place + count > chunk.place_count:
            chunk.place_count = <uint32_t>(place + count)
        return 0

    cdef int know(self, uint32_t number) except -1:
        cdef uint64_t capacity = max(<uint64_t>number + 1, <uint64_t>self.last_capacity + self.last_capacity // 8 + 64)
        capacity = min(capacity, <uint64_t>0xFFFFFFFF)
        cdef int64_t* last = <int64_t*>PyMem_RawRealloc(self.last, capacity * sizeof(int64_t))
        if last == NULL:
            raise MemoryError()
        memset(last + self.last_capacity, 0xFF, (capacity - self.last_capacity) * sizeof(int64_t))
        self.last = last
        self.last_capacity = <uint32_t>capacity
        return 0

    cdef int grow_fresh(self) except -1:
        cdef uint64_t capacity = <uint64_t>self.fresh_capacity + self.fresh_capacity // 2 + 64
        cdef uint32_t* fresh = <uint32_t*>PyMem_RawRealloc(self.fresh, capacity * sizeof(uint32_t))
        if fresh == NULL:
            raise MemoryError()
        self.fresh = fresh
        self.fresh_capacity = <uint32_t>capacity
        return 0

    def pack_first(self):
        """Pack the chunk that has waited longest, in memory; an index with files writes it there instead."""
        chunk_id = self.waiting.pop(0)
        chunk = self.chunks.get(chunk_id)
        if type(chunk) is ColumnChunk:
            self.chunks[chunk_id] = PackedChunk((<ColumnChunk>chunk).pack(self.end_of(chunk_id), 0, 0))
            if chunk is self.writing:
                self.writing = None

    def end_of(self, int64_t chunk_id):
        """Up to where the chunk's offsets are covered."""
        return self.covered_end if chunk_id == self.open_id else (chunk_id + 1) << BITS

    def last_offset(self, uint32_t number):
        """The offset of the topic's last record, -1 if there is none. After a crash possibly a little too far on."""
        return self.last[number] if 0 < number < self.last_capacity else -1

    def count_topics(self, int64_t offset):
        """How many topics have a record at or beyond an offset."""
        cdef uint32_t number
        cdef Py_ssize_t count = 0
        for number in range(1, self.last_capacity):
            count += self.last[number] >= offset
        return count

    cdef Chunk chunk_at(self, int64_t chunk_id):
        """The chunk, checked; None where nothing was added; CorruptFrame where something was and is lost."""
        if chunk_id in self.lost:
            raise CorruptFrame(
                f"the topic index of offsets {chunk_id << BITS} to {(chunk_id + 1) << BITS} must be rebuilt")
        chunk = self.chunks.get(chunk_id)
        if chunk is not None and chunk_id in self.unchecked:
            self.unchecked.discard(chunk_id)
            try:
                chunk.check()
            except CorruptFrame:
                self.lose(chunk_id)
                raise
        return chunk

    cdef object ids_of(self, int64_t first, int64_t last):
        """Of chunks there may be something in. A gap of offsets may be as long as numbers go: it is not walked."""
        if last - first <= len(self.chunks):
            return range(first, last + 1)
        return sorted([one for one in {*self.chunks, *self.lost} if first <= one <= last])

    def lose(self, int64_t chunk_id):
        """A chunk turned out to be damaged: it must be added again."""
        self.chunks.pop(chunk_id, None)
        self.lost.add(chunk_id)

    def find_one(self, uint32_t number, int64_t start, int64_t end, int64_t limit=_UNLIMITED):
        """The offsets of one topic's records: cost follows what is found."""
        cdef Offsets found = Offsets(), newest = None
        cdef Chunk chunk
        cdef int64_t chunk_id, base
        start = max(start, self.start_offset)
        end = min(end, self.covered_end)
        end = min(end, self.last[number] + 1 if 0 < number < self.last_capacity else 0)
        if start >= end:
            return array("q")
        for chunk_id in self.ids_of(start >> BITS, end - 1 >> BITS):
            if found.count >= limit:
                break
            base = chunk_id << BITS
            chunk = self.chunk_at(chunk_id)
            if chunk is None:
                continue
            if chunk_id == self.open_id and type(chunk) is ColumnChunk:  # a full one is packed
                newest = self.find_in_open(chunk, number, max(start, base), end, limit - found.count)
                if newest is not None:
                    while newest.count:
                        newest.count -= 1
                        if found.count < limit and not found.push(newest.items[newest.count]):
                            raise MemoryError()
                    continue
            chunk.find_one_c(number, max(start - base, <int64_t>0), end - base, limit - found.count, found)
        return found.array()

    cdef Offsets find_in_open(self, ColumnChunk chunk, uint32_t number, int64_t start, int64_t end, int64_t limit):
        """Walk back from the topic's newest record, newest first. None if that is further than scanning forwards."""
        cdef Offsets found = Offsets()
        cdef int64_t steps = (end - start) // DENSE + 64
        cdef int64_t base = chunk.base_offset
        cdef uint32_t place = <uint32_t>(self.last[number] - base) + 1
        if place > chunk.place_count or chunk.column[place - 1] != number:
            return None   # what is known of the last record is only that it is no further on
        while place and base + place - 1 >= start:
            steps -= 1
            if steps < 0:
                return None
            if base + place - 1 < end and not found.push(base + place - 1):
                raise MemoryError()
            place = chunk.previous[place - 1]
        return found

    def find_many(self, const uint8_t[::1] bitmap not None, int64_t start, int64_t end, int64_t limit=_UNLIMITED):
        """The offsets of the records of all topics whose bit is set, and up to where was searched."""
        cdef Offsets found = Offsets()
        cdef Chunk chunk
        cdef int64_t chunk_id, base
        cdef int64_t first = max(start, self.start_offset), last = min(end, self.covered_end)
        cdef const uint8_t* bits = &bitmap[0] if bitmap.shape[0] else NULL
        if limit <= 0:
            return array("q"), start
        if first < last:
            for chunk_id in self.ids_of(first >> BITS, last - 1 >> BITS):
                base = chunk_id << BITS
                chunk = self.chunk_at(chunk_id)
                if chunk is not None:
                    chunk.scan_c(bits, bitmap.shape[0], max(first - base, <int64_t>0), last - base,
                                 limit - found.count, found)
                if found.count >= limit:
                    return found.array(), found.items[found.count - 1] + 1
        return found.array(), max(start, last)

    def count_one(self, uint32_t number, int64_t start, int64_t end):
        cdef Chunk chunk
        cdef int64_t chunk_id, base, total = 0
        start = max(start, self.start_offset)
        end = min(end, self.covered_end)
        end = min(end, self.last[number] + 1 if 0 < number < self.last_capacity else 0)
        if start < end:
            for chunk_id in self.ids_of(start >> BITS, end - 1 >> BITS):
                base = chunk_id << BITS
                chunk = self.chunk_at(chunk_id)
                if chunk is not None:
                    total += chunk.count_one_c(number, max(start - base, <int64_t>0), end - base)
        return total

    def count(self, const uint8_t[::1] bitmap not None, int64_t start, int64_t end):
        cdef Chunk chunk
        cdef int64_t chunk_id, base, total = 0
        cdef const uint8_t* bits = &bitmap[0] if bitmap.shape[0] else NULL
        start = max(start, self.start_offset)
        end = min(end, self.covered_end)
        if start < end:
            for chunk_id in self.ids_of(start >> BITS, end - 1 >> BITS):
                base = chunk_id << BITS
                chunk = self.chunk_at(chunk_id)
                if chunk is not None:
                    total += chunk.count_c(bits, bitmap.shape[0], max(start - base, <int64_t>0), end - base)
        return total

    def trim(self, int64_t before_offset):
        """Forget all offsets below; returns the topics of which nothing is left."""
        cdef int64_t start = self.start_offset, end = min(before_offset, self.covered_end), chunk_id, base
        cdef list gone = []
        cdef const uint32_t[::1] numbers
        cdef Py_ssize_t i
        if start < end:
            for chunk_id in self.ids_of(start >> BITS, end - 1 >> BITS):
                base = chunk_id << BITS
                if chunk_id not in self.chunks:
                    continue
                self.chunk_at(chunk_id)
                numbers = self.chunks[chunk_id].numbers_between(max(start - base, <int64_t>0), end - base)
                for i in range(numbers.shape[0]):
                    if numbers[i] < self.last_capacity and 0 <= self.last[numbers[i]] < before_offset:
                        self.last[numbers[i]] = -1
                        gone.append(numbers[i])
        self.start_offset = max(self.start_offset, before_offset)
        for chunk_id in [c for c in self.chunks if (c + 1) << BITS <= before_offset]:
            del self.chunks[chunk_id]
        self.waiting = [c for c in self.waiting if c in self.chunks]
        self.lost = {c for c in self.lost if (c + 1) << BITS > before_offset}
        if self.writing is not None and self.writing.base_offset >> BITS not in self.chunks:
            self.writing = None
        return gone

    def memory_bytes(self):
        """Without the trie of topics."""
        return (8 * <uint64_t>self.last_capacity + 4 * <uint64_t>self.fresh_capacity
                + sum([chunk.memory_bytes() for chunk in self.chunks.values()]))

    # -- for the files -------------------------------------------------------------------------------------------------

    def take_fresh(self):
        """The topics that came (again) since the last call."""
        numbers = array("I")
        if self.fresh_count:
            numbers.frombytes((<const char*>self.fresh)[:<size_t>self.fresh_count * sizeof(uint32_t)])
        PyMem_RawFree(self.fresh)
        self.fresh = NULL
        self.fresh_count = self.fresh_capacity = 0
        return numbers

    def last_offsets(self):
        offsets = array("q")
        if self.last_capacity:
            offsets.frombytes((<const char*>self.last)[:<size_t>self.last_capacity * sizeof(int64_t)])
        return offsets

    def restore(self, const int64_t[::1] last_offsets):
        cdef Py_ssize_t i
        if last_offsets.shape[0]:
            self.know(<uint32_t>last_offsets.shape[0] - 1)
            memcpy(self.last, &last_offsets[0], last_offsets.shape[0] * sizeof(int64_t))

    def put_chunk(self, PackedChunk chunk not None, *, bint checked):
        chunk_id = chunk.base_offset >> BITS
        self.chunks[chunk_id] = chunk
        if self.writing is not None and self.writing.base_offset == chunk.base_offset:
            self.writing = None
        if not checked:
            self.unchecked.add(chunk_id)

    def reopen(self, int64_t chunk_id):
        """Go on adding to the last chunk."""
        cdef ColumnChunk column
        cdef uint32_t place, number, known = self.topics.numbers_end
        chunk = self.chunk_at(chunk_id)
        self.chunks[chunk_id] = column = chunk.unpack() if type(chunk) is PackedChunk else chunk
        self.open_id = chunk_id
        self.writing = None
        self.forget_beyond(column.base_offset)
        if known > self.last_capacity:
            self.know(known - 1)
        for place in range(column.place_count):
            number = column.column[place]
            if number and column.base_offset + place >= self.start_offset:
                if number >= self.last_capacity:
                    self.know(number)
                self.last[number] = column.base_offset + place

    def forget_beyond(self, int64_t end):
        """No topic's last record is known to be at `end` or further on."""
        cdef uint32_t number
        for number in range(self.last_capacity):
            if self.last[number] >= end:
                self.last[number] = end - 1

    def unseen(self, uint32_t numbers_end):
        """Numbers below `numbers_end` without a record."""
        cdef uint32_t number
        return [number for number in range(1, numbers_end) if number >= self.last_capacity or self.last[number] < 0]

    def learn_last(self, int64_t chunk_id):
        """Take from a chunk's topics that their last record is no further back than its end."""
        cdef int64_t end = self.end_of(chunk_id)
        cdef uint32_t known = self.topics.numbers_end
        cdef const uint32_t[::1] numbers = self.chunks[chunk_id].numbers_between(0, RECORDS)
        cdef Py_ssize_t i
        if known > self.last_capacity:
            self.know(known - 1)
        for i in range(numbers.shape[0]):
            if numbers[i] < known:   # the chunk is not checked yet: believe nothing that makes us allocate
                self.last[numbers[i]] = max(self.last[numbers[i]], end - 1)

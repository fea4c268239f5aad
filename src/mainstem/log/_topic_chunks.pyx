# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Chunks of the topic index. The plain `tests/oracles/topic_index.py` says the same.

Buffers that other threads may be scanning without the GIL never move: a column is allocated whole (the system backs it
with memory as it fills), and a chunk lives as long as somebody holds it. One chunk's columns are kept for the next: memory
that the system has just backed costs more than all that is written to it. Nothing in them is zero unless it was set so.
"""

from array import array

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from mainstem.log.topic_index_format import (
    CHUNK_BITS, CHUNK_RECORDS, HEAD_SIZE, ChunkHead, check_body, pack_head, parse_head,
)

cdef enum:
    PLACE_BYTES_MAX = 8   # of a list: its count and a distance take at most 3 + 3 bytes

assert CHUNK_BITS == BITS and CHUNK_RECORDS == RECORDS
cdef uint32_t _END = 0xFFFFFFFF
cdef Py_ssize_t _HEAD_SIZE = HEAD_SIZE
cdef uint32_t* _spare = NULL  # both columns of a chunk that is no more


cdef class Offsets:
    def __dealloc__(self):
        PyMem_RawFree(self.items)

    cdef bint push(self, int64_t offset) noexcept nogil:
        cdef int64_t* items
        if self.count == self.capacity:
            items = <int64_t*>PyMem_RawRealloc(self.items, (self.capacity * 2 + 64) * sizeof(int64_t))
            if items == NULL:
                return False
            self.items = items
            self.capacity = self.capacity * 2 + 64
        self.items[self.count] = offset
        self.count += 1
        return True

    def array(self):
        found = array("q")
        if self.count:
            found.frombytes((<const char*>self.items)[:self.count * sizeof(int64_t)])
        return found


cdef inline bint _bit(const uint8_t* bits, uint64_t bit_bytes, uint32_t number) noexcept nogil:
    return number >> 3 < bit_bytes and bits[number >> 3] >> (number & 7) & 1


cdef class Chunk:
    @property
    def places(self):
        return self.place_count

    cdef int find_one_c(self, uint32_t number, int64_t start, int64_t end, int64_t limit, Offsets found) except -1:
        raise NotImplementedError

    cdef int scan_c(self, const uint8_t* bits, uint64_t bit_bytes, int64_t start, int64_t end, int64_t limit,
                    Offsets found) except -1:
        raise NotImplementedError

    cdef int64_t count_one_c(self, uint32_t number, int64_t start, int64_t end) except -1:
        raise NotImplementedError

    cdef int64_t count_c(self, const uint8_t* bits, uint64_t bit_bytes, int64_t start, int64_t end) except -1:
        raise NotImplementedError


cdef bint _scan_for(const uint32_t* column, uint32_t number, int64_t start, int64_t end, int64_t limit,
                    int64_t base, Offsets found) noexcept nogil:
    """Blocks of 64 are first compared as a whole, which the compiler turns into vector code."""
    cdef int64_t place = start, i
    cdef uint32_t hits
    while place < end and limit > 0:
        if place + 64 <= end:
            hits = 0
            for i in range(64):
                hits += column[place + i] == number
            if hits == 0:
                place += 64
                continue
        for i in range(min(<int64_t>64, end - place)):
            if column[place + i] == number:
                if not found.push(base + place + i):
                    return False
                limit -= 1
                if limit <= 0:
                    return True
        place += 64
    return True


cdef class ColumnChunk(Chunk):
    def __cinit__(self, int64_t base_offset):
        global _spare
        self.base_offset = base_offset
        self.column, _spare = _spare, NULL
        if self.column == NULL:
            self.column = <uint32_t*>malloc(2 * RECORDS * sizeof(uint32_t))
            if self.column == NULL:
                raise MemoryError()
        self.previous = self.column + RECORDS

    def __dealloc__(self):
        global _spare
        if _spare == NULL:
            _spare = self.column
        else:
            free(self.column)

    cdef void skip_to(self, int64_t place) noexcept:
        """What lies before it and was not added has no topic."""
        if place > self.place_count:
            memset(self.column + self.place_count, 0, (place - self.place_count) * sizeof(uint32_t))
            memset(self.previous + self.place_count, 0, (place - self.place_count) * sizeof(uint32_t))
            self.place_count = <uint32_t>place

    cdef int find_one_c(self, uint32_t number, int64_t start, int64_t end, int64_t limit, Offsets found) except -1:
        cdef bint done
        end = min(end, <int64_t>self.place_count)
        with nogil:
            done = _scan_for(self.column, number, start, end, limit, self.base_offset, found)
        if not done:
            raise MemoryError()
        return 0

    cdef int scan_c(self, const uint8_t* bits, uint64_t bit_bytes, int64_t start, int64_t end, int64_t limit,
                    Offsets found) except -1:
        cdef bint done = True
        cdef int64_t place
        end = min(end, <int64_t>self.place_count)
        with nogil:
            for place in range(start, end):
                if _bit(bits, bit_bytes, self.column[place]):
                    done = found.push(self.base_offset + place)
                    limit -= 1
                    if limit <= 0 or not done:
                        break
        if not done:
            raise MemoryError()
        return 0

    cdef int64_t count_one_c(self, uint32_t number, int64_t start, int64_t end) except -1:
        cdef int64_t place, total = 0
        end = min(end, <int64_t>self.place_count)
        with nogil:
            for place in range(start, end):
                total += self.column[place] == number
        return total

    cdef int64_t count_c(self, const uint8_t* bits, uint64_t bit_bytes, int64_t start, int64_t end) except -1:
        cdef int64_t place, total = 0
        end = min(end, <int64_t>self.place_count)
        with nogil:
            for place in range(start, end):
                total += _bit(bits, bit_bytes, self.column[place])
        return total

    def numbers_between(self, int64_t start, int64_t end):
        """The topics of these places; each at least once."""
        numbers = array("I")
        end = min(end, <int64_t>self.place_count)
        if start < end:
            numbers.frombytes((<const char*>(self.column + start))[:(end - start) * sizeof(uint32_t)])
        return numbers

    def memory_bytes(self):
        return 2 * self.place_count * sizeof(uint32_t)

    def pack(self, int64_t covered_end, uint64_t generation, uint64_t names_end):
        """The chunk as a file holds it; mostly without the GIL."""
        cdef uint32_t count = self.place_count, topics = 0, width
        cdef uint32_t* counts = NULL
        cdef uint32_t* order = <uint32_t*>malloc((<size_t>count + 1) * sizeof(uint32_t))
        cdef uint32_t* numbers = <uint32_t*>malloc((<size_t>count + 1) * sizeof(uint32_t))
        cdef uint32_t* starts = <uint32_t*>malloc((<size_t>count + 1) * sizeof(uint32_t))
        cdef uint8_t* lists = <uint8_t*>malloc(<size_t>count * PLACE_BYTES_MAX + 16)
        cdef uint64_t list_bytes = 0
        cdef bytes packed, front
        cdef uint8_t* body
        try:
            if order == NULL or numbers == NULL or starts == NULL or lists == NULL:
                raise MemoryError()
            with nogil:
                counts = _count(self.column, count)
                if counts != NULL:
                    topics = _sort(self.column, count, counts, order, numbers, starts)
                    list_bytes = _pack_lists(order, starts, topics, lists)
            if counts == NULL:
                raise MemoryError()
            width = 1 if topics <= 0xFF else 2 if topics <= 0xFFFF else 4
            packed = PyBytes_FromStringAndSize(
                NULL, _HEAD_SIZE + (count * width + 3) // 4 * 4 + 8 * topics + 4 + list_bytes)
            body = <uint8_t*>PyBytes_AS_STRING(packed) + _HEAD_SIZE
            with nogil:
                _write_body(body, self.column, count, width, counts, numbers, starts, topics, lists, list_bytes)
        finally:
            free(counts)
            free(order)
            free(numbers)
            free(starts)
            free(lists)
        head = ChunkHead(self.base_offset, covered_end, generation, names_end, count, topics, width, list_bytes)
        front = pack_head(head, memoryview(packed)[_HEAD_SIZE:])
        memcpy(PyBytes_AS_STRING(packed), PyBytes_AS_STRING(front), _HEAD_SIZE)
        return packed


cdef uint32_t* _count(const uint32_t* column, uint32_t count) noexcept nogil:
    """How many records each number has; the array is as long as the largest number. The caller frees it."""
    cdef uint32_t largest = 0, place
    cdef uint32_t* counts
    for place in range(count):
        largest = max(largest, column[place])
    counts = <uint32_t*>calloc(<size_t>largest + 2, sizeof(uint32_t))
    if counts != NULL:
        counts[largest + 1] = _END
        for place in range(count):
            counts[column[place]] += 1
        counts[0] = 0
    return counts


cdef uint32_t _sort(const uint32_t* column, uint32_t count, uint32_t* counts, uint32_t* order, uint32_t* numbers,
                    uint32_t* starts) noexcept nogil:
    """Places by number, then offset; `counts` becomes the rank of each number, from 1. Returns how many topics."""
    cdef uint32_t number = 1, topics = 0, total = 0, place, before
    while counts[number] != _END:
        if counts[number]:
            before = counts[number]
            numbers[topics] = number
            starts[topics] = total
            total += before
            counts[number] = topics + 1
            topics += 1
        number += 1
    starts[topics] = total
    for place in range(count):
        if column[place]:
            before = counts[column[place]] - 1
            order[starts[before]] = place
            starts[before] += 1
    for place in range(topics, 0, -1):   # filling moved each start to the next one's
        starts[place] = starts[place - 1]
    starts[0] = 0
    return topics


cdef inline uint8_t* _write_varint(uint8_t* at, uint32_t value) noexcept nogil:
    while value >= 0x80:
        at[0] = <uint8_t>(value | 0x80)
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
    return at + 1


cdef inline const uint8_t* _read_varint(const uint8_t* at, uint32_t* value) noexcept nogil:
    cdef uint32_t byte = at[0], shift = 0
    value[0] = byte & 0x7F
    while byte & 0x80:
        at += 1
        shift += 7
        byte = at[0]
        value[0] |= (byte & 0x7F) << shift
    return at + 1


cdef uint64_t _pack_lists(const uint32_t* order, uint32_t* starts, uint32_t topics, uint8_t* lists) noexcept nogil:
    """`starts` changes from places to bytes."""
    cdef uint8_t* at = lists
    cdef uint32_t rank, i, before, first = 0, end
    for rank in range(topics):
        end = starts[rank + 1]
        starts[rank] = <uint32_t>(at - lists)
        at = _write_varint(at, end - first)
        before = 0
        for i in range(first, end):
            at = _write_varint(at, order[i] - before)
            before = order[i]
        first = end
    starts[topics] = <uint32_t>(at - lists)
    return at - lists


cdef void _write_body(uint8_t* at, const uint32_t* column, uint32_t count, uint32_t width, const uint32_t* ranks,
                      const uint32_t* numbers, const uint32_t* starts, uint32_t topics, const uint8_t* lists,
                      uint64_t list_bytes) noexcept nogil:
    cdef uint32_t place
    if width == 4:
        memcpy(at, column, <size_t>count * 4)
    elif width == 2:
        for place in range(count):
            (<uint16_t*>at)[place] = <uint16_t>ranks[column[place]]
    else:
        for place in range(count):
            at[place] = <uint8_t>ranks[column[place]]
    at += <size_t>count * width
    for place in range((4 - count * width % 4) % 4):
        at[0] = 0
        at += 1
    memcpy(at, numbers, <size_t>topics * 4)
    at += <size_t>topics * 4
    memcpy(at, starts, <size_t>(topics + 1) * 4)
    at += <size_t>(topics + 1) * 4
    memcpy(at, lists, list_bytes)


@cython.final
cdef class PackedChunk(Chunk):
    def __init__(self, data):
        self.head = parse_head(data)
        self.data = data
        self.view = data
        self.base_offset = self.head.base_offset
        self.place_count = self.head.places
        self.topic_count = self.head.topics
        self.width = self.head.width
        self.column = &self.view[0] + <size_t>HEAD_SIZE
        self.numbers = <const uint32_t*>(self.column + <size_t>self.head.column_bytes)
        self.starts = self.numbers + self.topic_count
        self.lists = <const uint8_t*>(self.starts + self.topic_count + 1)

    def check(self):
        """Raise CorruptFrame unless the whole chunk is as it was written."""
        check_body(self.data, self.head)

    def memory_bytes(self):
        return len(self.data) if type(self.data) is bytes else 0

    def unpack(self):
        """The same as a chunk that records can be added to."""
        cdef ColumnChunk chunk = ColumnChunk(self.base_offset)
        cdef uint32_t place, value
        cdef uint32_t* last = <uint32_t*>calloc(<size_t>self.topic_count + 1, sizeof(uint32_t))
        if last == NULL:
            raise MemoryError()
        with nogil:
            for place in range(self.place_count):
                value = self._value(place)
                if self.width == 4:
                    chunk.column[place] = value
                    value = <uint32_t>(self.rank_of(value) + 1) if value else 0
                else:
                    chunk.column[place] = self.numbers[value - 1] if value else 0
                chunk.previous[place] = last[value]
                if value:
                    last[value] = place + 1
        free(last)
        chunk.place_count = self.place_count
        return chunk

    cdef uint32_t _value(self, uint32_t place) noexcept nogil:
        if self.width == 1:
            return self.column[place]
        return (<const uint16_t*>self.column)[place] if self.width == 2 else (<const uint32_t*>self.column)[place]

    cdef int64_t rank_of(self, uint32_t number) noexcept nogil:
        """From 0; -1 if the chunk has no record of it."""
        cdef int64_t low = 0, high = self.topic_count, middle
        while low < high:
            middle = (low + high) // 2
            if self.numbers[middle] < number:
                low = middle + 1
            else:
                high = middle
        return low if low < self.topic_count and self.numbers[low] == number else -1

    cdef int find_one_c(self, uint32_t number, int64_t start, int64_t end, int64_t limit, Offsets found) except -1:
        cdef bint done = True
        end = min(end, <int64_t>self.place_count)
        with nogil:
            done = self._find_one(number, start, end, limit, found)
        if not done:
            raise MemoryError()
        return 0

    cdef bint _find_one(self, uint32_t number, int64_t start, int64_t end, int64_t limit, Offsets found) noexcept nogil:
        cdef int64_t rank = self.rank_of(number), place
        cdef uint32_t count, distance, value, at = 0
        cdef const uint8_t* list
        if rank < 0:
            return True
        list = _read_varint(self.lists + self.starts[rank], &count)
        if count > self.place_count // DENSE:
            value = number if self.width == 4 else <uint32_t>rank + 1
            for place in range(start, end):
                if self._value(<uint32_t>place) == value:
                    limit -= 1
                    if not found.push(self.base_offset + place):
                        return False
                    if limit <= 0:
                        break
            return True
        for count in range(count):
            list = _read_varint(list, &distance)
            at += distance
            if at >= end or limit <= 0:
                break
            if at >= start:
                limit -= 1
                if not found.push(self.base_offset + at):
                    return False
        return True

    cdef uint8_t* table_of(self, const uint8_t* bits, uint64_t bit_bytes, bint* any_set) noexcept nogil:
        """One byte per rank, for columns of ranks; the caller frees it."""
        cdef uint8_t* table = <uint8_t*>malloc(<size_t>self.topic_count + 1)
        cdef uint32_t rank
        cdef uint8_t any_of_them = 0
        if table != NULL:
            table[0] = 0
            for rank in range(self.topic_count):
                table[rank + 1] = _bit(bits, bit_bytes, self.numbers[rank])
                any_of_them |= table[rank + 1]
            any_set[0] = any_of_them
        return table

    cdef int scan_c(self, const uint8_t* bits, uint64_t bit_bytes, int64_t start, int64_t end, int64_t limit,
                    Offsets found) except -1:
        cdef uint8_t* table = NULL
        cdef bint done = True, any_set = True
        end = min(end, <int64_t>self.place_count)
        with nogil:
            if self.width < 4:
                table = self.table_of(bits, bit_bytes, &any_set)
                done = table != NULL
            if done and any_set:
                if self.width == 1:
                    done = _scan_ranks[uint8_t](self.column, table, start, end, limit, self.base_offset, found)
                elif self.width == 2:
                    done = _scan_ranks[uint16_t](<const uint16_t*>self.column, table, start, end, limit,
                                                 self.base_offset, found)
                else:
                    done = _scan_numbers(<const uint32_t*>self.column, bits, bit_bytes, start, end, limit,
                                         self.base_offset, found)
            free(table)
        if not done:
            raise MemoryError()
        return 0

    cdef int64_t count_one_c(self, uint32_t number, int64_t start, int64_t end) except -1:
        cdef int64_t rank = self.rank_of(number), total = 0, place
        cdef uint32_t count, distance, value, at = 0
        cdef const uint8_t* list
        if rank < 0:
            return 0
        with nogil:
            list = _read_varint(self.lists + self.starts[rank], &count)
            if start <= 0 and end >= self.place_count:
                total = count
            elif min(end, <int64_t>self.place_count) - start < count:  # fewer places than the list is long
                value = number if self.width == 4 else <uint32_t>rank + 1
                for place in range(start, min(end, <int64_t>self.place_count)):
                    total += self._value(<uint32_t>place) == value
            else:
                for count in range(count):
                    list = _read_varint(list, &distance)
                    at += distance
                    if at >= end:
                        break
                    total += start <= at
        return total

    cdef int64_t count_c(self, const uint8_t* bits, uint64_t bit_bytes, int64_t start, int64_t end) except -1:
        cdef uint8_t* table = NULL
        cdef bint any_set = True, done = True
        cdef int64_t total = 0, place
        cdef uint32_t rank, count
        with nogil:
            if start <= 0 and end >= self.place_count:   # all of it: the lists know how long they are
                for rank in range(self.topic_count):
                    if _bit(bits, bit_bytes, self.numbers[rank]):
                        _read_varint(self.lists + self.starts[rank], &count)
                        total += count
            else:
                end = min(end, <int64_t>self.place_count)
                if self.width < 4:
                    table = self.table_of(bits, bit_bytes, &any_set)
                    done = table != NULL
                if done and any_set:
                    for place in range(start, end):
                        if self.width < 4:
                            total += table[self._value(<uint32_t>place)]
                        else:
                            total += _bit(bits, bit_bytes, (<const uint32_t*>self.column)[place])
                free(table)
        if not done:
            raise MemoryError()
        return total

    def numbers_between(self, int64_t start, int64_t end):
        cdef int64_t place
        cdef uint32_t value
        numbers = array("I")
        end = min(end, <int64_t>self.place_count)
        if start <= 0 and end >= self.place_count:
            numbers.frombytes((<const char*>self.numbers)[:<size_t>self.topic_count * sizeof(uint32_t)])
            return numbers
        for place in range(start, end):
            value = self._value(<uint32_t>place)
            if value:
                numbers.append(value if self.width == 4 else self.numbers[value - 1])
        return numbers


ctypedef fused rank_t:
    uint8_t
    uint16_t


cdef bint _scan_ranks(const rank_t* column, const uint8_t* table, int64_t start, int64_t end, int64_t limit,
                      int64_t base, Offsets found) noexcept nogil:
    """Four places at a time as long as none of them is meant."""
    cdef int64_t place = start
    while place < end:
        while place + 4 <= end and not (table[column[place]] | table[column[place + 1]] | table[column[place + 2]]
                                        | table[column[place + 3]]):
            place += 4
        if place < end and table[column[place]]:
            if not found.push(base + place):
                return False
            limit -= 1
            if limit <= 0:
                return True
        place += 1
    return True


cdef bint _scan_numbers(const uint32_t* column, const uint8_t* bits, uint64_t bit_bytes, int64_t start, int64_t end,
                        int64_t limit, int64_t base, Offsets found) noexcept nogil:
    cdef int64_t place
    for place in range(start, end):
        if _bit(bits, bit_bytes, column[place]):
            if not found.push(base + place):
                return False
            limit -= 1
            if limit <= 0:
                return True
    return True

# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Where the retained messages of a namespace lie, by their topics' numbers: 20 bytes each, in three flat arrays.

Entries of a snapshot are packed and loaded here, too, because there may be a million of them. What they look like is drawn
in `snapshot.py`; the value of one is big-endian u32 log, i64 offset, i64 stamp (`retained.py`).
"""

from array import array

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy, memset

from mainstem.model._level_tree cimport grown
from mainstem.model._topic_tries cimport TopicTrie

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint32_t mainstem_be32(const char *at) {
        uint32_t value; memcpy(&value, at, 4); return __builtin_bswap32(value);
    }
    static inline uint64_t mainstem_be64(const char *at) {
        uint64_t value; memcpy(&value, at, 8); return __builtin_bswap64(value);
    }
    static inline char *mainstem_put32(char *at, uint32_t value) {
        value = __builtin_bswap32(value); memcpy(at, &value, 4); return at + 4;
    }
    static inline char *mainstem_put64(char *at, uint64_t value) {
        value = __builtin_bswap64(value); memcpy(at, &value, 8); return at + 8;
    }
    static int mainstem_ascending(const void *a, const void *b) {
        int64_t x = *(const int64_t *)a, y = *(const int64_t *)b; return x < y ? -1 : x > y;
    }
    """
    uint32_t mainstem_be32(const char*) noexcept nogil
    uint64_t mainstem_be64(const char*) noexcept nogil
    char* mainstem_put32(char*, uint32_t) noexcept nogil
    char* mainstem_put64(char*, uint64_t) noexcept nogil
    int mainstem_ascending(const void*, const void*) noexcept nogil

cdef enum:
    VALUE_BYTES = 20
    SIZES_BYTES = 8


cdef class Pointers:
    cdef uint32_t* logs  # 0: no message is retained under this number
    cdef int64_t* offsets
    cdef int64_t* stamps
    cdef uint32_t capacity, count

    def __dealloc__(self):
        PyMem_RawFree(self.logs)
        PyMem_RawFree(self.offsets)
        PyMem_RawFree(self.stamps)

    def __len__(self):
        return self.count

    cdef int _grow(self, uint64_t end) except -1:
        cdef uint64_t capacity
        cdef void* place
        if end <= self.capacity:
            return 0
        capacity = grown(self.capacity, end)
        place = PyMem_RawRealloc(self.logs, capacity * sizeof(uint32_t))
        if place == NULL:
            raise MemoryError()
        self.logs = <uint32_t*>place
        memset(self.logs + self.capacity, 0, (capacity - self.capacity) * sizeof(uint32_t))
        place = PyMem_RawRealloc(self.offsets, capacity * sizeof(int64_t))
        if place == NULL:
            raise MemoryError()
        self.offsets = <int64_t*>place
        place = PyMem_RawRealloc(self.stamps, capacity * sizeof(int64_t))
        if place == NULL:
            raise MemoryError()
        self.stamps = <int64_t*>place
        self.capacity = <uint32_t>capacity
        return 0

    cpdef int put(self, uint32_t number, uint32_t log_id, int64_t offset, int64_t stamp) except -1:
        self._grow(<uint64_t>number + 1)
        self.count += self.logs[number] == 0
        self.logs[number] = log_id
        self.offsets[number] = offset
        self.stamps[number] = stamp
        return 0

    def get(self, uint32_t number):
        """(log, offset, stamp), or None."""
        if number >= self.capacity or not self.logs[number]:
            return None
        return self.logs[number], self.offsets[number], self.stamps[number]

    def remove(self, uint32_t number):
        if number < self.capacity:
            self.count -= self.logs[number] != 0
            self.logs[number] = 0

    def next_number(self, uint32_t number):
        """The first number from this one on that has a pointer; 0 if there is none."""
        while number < self.capacity:
            if self.logs[number]:
                return number
            number += 1
        return 0

    def offsets_in(self, uint32_t log_id):
        """The offsets that lie in one log, ascending."""
        cdef uint64_t found = 0
        cdef uint32_t number
        for number in range(self.capacity):
            found += self.logs[number] == log_id
        result = array("q", bytes(found * sizeof(int64_t)))
        if not found:
            return result
        cdef int64_t[::1] view = result
        found = 0
        for number in range(self.capacity):
            if self.logs[number] == log_id:
                view[found] = self.offsets[number]
                found += 1
        with nogil:
            qsort(&view[0], found, sizeof(int64_t), mainstem_ascending)
        return result

    # -- snapshots

    def pack(self, TopicTrie topics not None, bytes prefix not None, uint32_t number, uint32_t entries_max):
        """(entries of a snapshot from `number` on, the number to go on with or 0); a name is `prefix` and the topic."""
        cdef uint32_t end = number, left = entries_max, length
        cdef uint32_t prefix_size = <uint32_t>PyBytes_GET_SIZE(prefix)
        cdef uint64_t size = 0
        cdef char* at
        while end < self.capacity and left:
            if self.logs[end]:
                size += SIZES_BYTES + VALUE_BYTES + prefix_size + topics._length(topics._node(end))
                left -= 1
            end += 1
        cdef bytes packed = PyBytes_FromStringAndSize(NULL, size)
        at = PyBytes_AS_STRING(packed)
        for number in range(number, end):
            if not self.logs[number]:
                continue
            length = topics._length(topics.node_of[number])
            at = mainstem_put32(at, prefix_size + length)
            at = mainstem_put32(at, VALUE_BYTES)
            memcpy(at, PyBytes_AS_STRING(prefix), prefix_size)
            at += prefix_size + length
            topics._spell(topics.node_of[number], at)
            at = mainstem_put32(at, self.logs[number])
            at = mainstem_put64(at, <uint64_t>self.offsets[number])
            at = mainstem_put64(at, <uint64_t>self.stamps[number])
        return packed, end if end < self.capacity else 0

    def load(self, TopicTrie topics not None, bytes data not None, uint64_t at, uint64_t end, bytes prefix not None):
        """Take entries of a snapshot for as long as their names begin with `prefix`: (where it stopped, how many)."""
        cdef const char* place = PyBytes_AS_STRING(data)
        cdef uint32_t prefix_size = <uint32_t>PyBytes_GET_SIZE(prefix), name_size
        cdef uint64_t count = 0, names_bytes = 0, after = at
        end = min(end, <uint64_t>PyBytes_GET_SIZE(data))
        while after + SIZES_BYTES <= end:
            name_size = mainstem_be32(place + after)
            if mainstem_be32(place + after + 4) != VALUE_BYTES or name_size < prefix_size \
                    or after + SIZES_BYTES + name_size + VALUE_BYTES > end \
                    or memcmp(place + after + SIZES_BYTES, PyBytes_AS_STRING(prefix), prefix_size) != 0:
                break
            after += SIZES_BYTES + name_size + VALUE_BYTES
            names_bytes += name_size - prefix_size
            count += 1
        topics.reserve(<uint32_t>count, names_bytes)
        self._grow(count + 1)
        while at < after:
            name_size = mainstem_be32(place + at) - prefix_size
            at += SIZES_BYTES + prefix_size
            self._load_one(topics.number_c(place + at, name_size), place + at + name_size)
            at += name_size + VALUE_BYTES
        return after, count

    cdef int _load_one(self, uint32_t number, const char* value) except -1:
        return self.put(number, mainstem_be32(value), <int64_t>mainstem_be64(value + 4), <int64_t>mainstem_be64(value + 12))

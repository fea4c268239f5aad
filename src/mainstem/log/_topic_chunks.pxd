cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    BITS = 20
    RECORDS = 1 << 20
    DENSE = 16          # a topic with more than 1/16 of a chunk is found faster by scanning than through its list

cdef class Offsets:
    """A growing list of offsets."""
    cdef int64_t* items
    cdef int64_t count, capacity
    cdef bint push(self, int64_t offset) noexcept nogil

cdef class Chunk:
    cdef readonly int64_t base_offset
    cdef uint32_t place_count
    cdef int find_one_c(self, uint32_t number, int64_t start, int64_t end, int64_t limit, Offsets found) except -1
    cdef int scan_c(self, const uint8_t* bits, uint64_t bit_bytes, int64_t start, int64_t end, int64_t limit,
                    Offsets found) except -1
    cdef int64_t count_one_c(self, uint32_t number, int64_t start, int64_t end) except -1
    cdef int64_t count_c(self, const uint8_t* bits, uint64_t bit_bytes, int64_t start, int64_t end) except -1

cdef class ColumnChunk(Chunk):
    cdef uint32_t* column
    cdef uint32_t* previous      # place + 1 of the record before it of the same topic in this chunk, 0 = none
    cdef void skip_to(self, int64_t place) noexcept

@cython.final
cdef class PackedChunk(Chunk):
    cdef readonly object head
    cdef object data
    cdef const uint8_t[::1] view
    cdef const uint8_t* column
    cdef const uint32_t* numbers
    cdef const uint32_t* starts
    cdef const uint8_t* lists
    cdef uint32_t topic_count, width
    cdef uint32_t _value(self, uint32_t place) noexcept nogil
    cdef bint _find_one(self, uint32_t number, int64_t start, int64_t end, int64_t limit, Offsets found) noexcept nogil
    cdef int64_t rank_of(self, uint32_t number) noexcept nogil
    cdef uint8_t* table_of(self, const uint8_t* bits, uint64_t bit_bytes, bint* any_set) noexcept nogil

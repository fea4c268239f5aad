from libc.stdint cimport int64_t, uint32_t

from mainstem.log._topic_chunks cimport Chunk, ColumnChunk, Offsets

cdef class IndexCore:
    cdef readonly object topics
    cdef public int64_t start_offset, covered_end, open_id
    cdef public dict chunks
    cdef public list waiting
    cdef public set lost
    cdef set unchecked
    cdef int64_t* last           # per topic number: the offset of its last record, -1 = none
    cdef uint32_t last_capacity
    cdef uint32_t* fresh
    cdef uint32_t fresh_count, fresh_capacity
    cdef ColumnChunk writing     # the chunk that the last record was added to

    cdef int add_c(self, int64_t base_offset, const uint32_t* numbers, int64_t count) except -1
    cdef ColumnChunk writable(self, int64_t chunk_id)
    cdef int extend(self, ColumnChunk chunk, int64_t offset, const uint32_t* numbers, int64_t count) except -1
    cdef int know(self, uint32_t number) except -1
    cdef int grow_fresh(self) except -1
    cdef Chunk chunk_at(self, int64_t chunk_id)
    cdef object ids_of(self, int64_t first, int64_t last)
    cdef Offsets find_in_open(self, ColumnChunk chunk, uint32_t number, int64_t start, int64_t end, int64_t limit)

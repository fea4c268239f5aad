# cython: language_level=3
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from mainstem.codec._runs cimport Binary, Run

cdef enum:
    TOPICS_MAX = 65536  # distinct topics remembered; beyond it the table starts anew
    TABLE_FULL = -2  # a topic is new and there is no room: whoever holds numbers uses them up, then calls `forget`


cdef struct Topic:
    const char* name  # as the record says it
    const char* kafka
    const char* canonical
    const char* levels  # joined
    const char* level_ends  # int32 each
    int64_t start
    int64_t end
    uint64_t hash
    uint32_t name_size
    uint32_t kafka_size
    uint32_t canonical_size
    uint32_t levels_size
    uint32_t level_count
    int32_t partition
    bint wanted


cdef class TopicTable:
    cdef object resolve
    cdef dict numbers  # topic id -> place in the table
    cdef list kept  # what the pointers above point into
    cdef Topic* topics
    cdef int32_t count, room, last
    cdef int32_t* slots
    cdef uint32_t slot_mask

    cdef int forget(self) except -1
    cdef int32_t by_id(self, uint32_t topic_id) except -1
    cdef int32_t by_name(self, const char* name, uint32_t size) except -1 nogil
    cdef int32_t add(self, bytes name, row) except -1
    cdef int describe(self, Topic* topic, row) except -1
    cdef void place(self, int32_t number) noexcept nogil
    cdef int widen(self) except -1

    # Columns of rows that are given by their topics' numbers (the low half of each int64), one column at a time.
    cdef int fill_kafka(self, const int64_t* rows, int64_t count, Binary* column) except -1 nogil
    cdef int fill_canonical(self, const int64_t* rows, int64_t count, Binary* column) except -1 nogil
    cdef int fill_partitions(self, const int64_t* rows, int64_t count, Run* column) except -1 nogil
    cdef int fill_levels(self, const int64_t* rows, int64_t count, Run* ends, Binary* levels) except -1 nogil

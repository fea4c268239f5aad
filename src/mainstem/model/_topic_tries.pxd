from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from mainstem.model._level_tree cimport LevelTree

cdef struct ActiveSet:
    uint32_t* nodes
    uint32_t count
    uint32_t capacity

cdef class FilterTrie(LevelTree):
    cdef list values
    cdef list values_free
    cdef uint32_t* seen
    cdef uint32_t seen_capacity, epoch
    cdef Py_ssize_t pair_count

    cdef list match_c(self, const char* topic, Py_ssize_t size)
    cdef int _add_value(self, uint32_t node, object entry) except -1
    cdef void _forget(self, uint32_t node) noexcept
    cdef int _make_seen(self) except -1
    cdef bint _search(self, const char* topic, Py_ssize_t size, ActiveSet* active, ActiveSet* following) noexcept nogil
    cdef bint _enter(self, ActiveSet* active, uint32_t node) noexcept nogil

cdef struct Trail:   # the topic inserted last: where each of its levels ends, and its node
    const char* name
    uint32_t size
    uint32_t depth
    uint32_t* nodes
    uint32_t* ends

cdef class TopicTrie(LevelTree):
    cdef uint32_t* node_of
    cdef uint32_t* numbers_free
    cdef uint32_t number_end, number_capacity, free_count, free_capacity, topic_count
    cdef bint free_stale
    cdef readonly uint32_t topics_max

    cdef uint32_t number_c(self, const char* topic, Py_ssize_t size) except 0
    cdef uint32_t find_c(self, const char* topic, Py_ssize_t size) noexcept nogil
    cdef int _insert(self, uint32_t node, const char* topic, Py_ssize_t size, uint32_t number, Trail* trail) except -1
    cdef uint32_t _add_tail(self, uint32_t parent, const char* text, uint32_t first, uint32_t length) except 0
    cdef int _put(self, uint32_t number, const char* topic, Py_ssize_t size) except -1
    cdef int _cut_tail(self, uint32_t node) except -1
    cdef int _insert_along(self, Trail* trail, const char* topic, Py_ssize_t size, uint32_t number) except -1
    cdef int _load(self, const uint8_t[::1] body, uint32_t count, Trail trail) except -1
    cdef int _grow_numbers(self, uint64_t end) except -1
    cdef uint32_t _node(self, uint32_t number) except 0
    cdef void _spell(self, uint32_t node, char* end) noexcept nogil
    cdef int _free_number(self, uint32_t number) except -1
    cdef int _list_free(self) except -1
    cdef uint16_t _length(self, uint32_t node) noexcept nogil
    cdef uint64_t _dump_size(self) noexcept nogil
    cdef int _reject(self) except -1
    cdef void _clear(self) noexcept

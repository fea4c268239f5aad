# cython: language_level=3
from libc.stdint cimport int16_t, uint8_t, uint32_t, uint64_t


cdef struct Entry:
    uint64_t hash
    void* topic  # bytes, owned
    void* route  # Route, owned; NULL: publishing there is refused with `reason`
    uint32_t size  # of the topic
    int16_t reason
    int16_t marks
    Py_ssize_t bytes_max


cdef class RouteTable:
    cdef Entry* entries  # in the order in which topics were first seen: who publishes in that order walks through memory
    cdef uint32_t capacity
    cdef uint64_t* slots  # upper half of the hash · place in `entries` + 1; 0 is empty
    cdef uint32_t mask
    cdef readonly uint32_t count
    cdef readonly uint32_t count_max
    cdef readonly uint64_t generation  # grows when it is emptied: what was found before must be found again
    cdef uint64_t seed
    cdef object resolve

    cdef Entry* find(self, const uint8_t* topic, Py_ssize_t size) except NULL
    cdef void _put(self, uint64_t hash, uint32_t place) noexcept
    cdef Entry* _resolve(self, uint64_t hash, const uint8_t* topic, Py_ssize_t size) except NULL
    cdef int _grow(self) except -1

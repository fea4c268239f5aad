# cython: language_level=3
cimport cython
from libc.stdint cimport int16_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #define mainstem_prefetch(at) __builtin_prefetch(at)
    """
    void prefetch "mainstem_prefetch" (const void* at) noexcept nogil


cdef inline uint64_t mix(uint64_t value) noexcept nogil:
    value ^= value >> 32
    value *= 0x9E3779B97F4A7C15ULL
    return value ^ (value >> 29)


cdef inline uint64_t hash_of(const uint8_t* at, Py_ssize_t size, uint64_t seed) noexcept nogil:
    """Never 0. Words are read whole, the last one so that it ends where the topic does: a copy of a few bytes stalls."""
    cdef const uint8_t* end = at + size
    cdef uint64_t result = seed ^ <uint64_t>size, word
    cdef uint32_t low, high
    if size >= 8:
        while end - at > 8:
            memcpy(&word, at, 8)
            result = mix(result ^ word) + seed
            at += 8
        memcpy(&word, end - 8, 8)
    elif size >= 4:
        memcpy(&low, at, 4)
        memcpy(&high, end - 4, 4)
        word = <uint64_t>high << 32 | low
    elif size:
        word = <uint64_t>at[0] << 16 | <uint64_t>at[size >> 1] << 8 | at[size - 1]
    else:
        word = 0
    return mix(mix(result ^ word) + seed) | 1ULL << 63


cdef struct Entry:
    uint64_t hash
    void* topic  # bytes, owned
    void* route  # Route, owned by `RouteTable.routes`; NULL: publishing there is refused with `reason`
    uint32_t size  # of the topic
    int16_t reason
    int16_t marks
    Py_ssize_t bytes_max


@cython.final
cdef class RouteTable:
    cdef Entry* entries  # in the order in which topics were first seen: who publishes in that order walks through memory
    cdef uint32_t capacity
    cdef uint64_t* slots  # upper half of the hash · place in `entries` + 1; 0 is empty
    cdef uint32_t mask
    cdef readonly uint32_t count
    cdef readonly uint32_t count_max
    cdef uint64_t resolved  # topics that were published to for the first time, ever
    cdef int64_t spent_ns  # with them
    cdef readonly uint64_t generation  # grows when it is emptied; no two tables share one
    cdef void _begin_generation(self) noexcept
    cdef void _drop_topics(self) noexcept
    cdef uint64_t seed
    cdef object resolve
    cdef list routes  # what the entries point to: the collector sees a list, and so finds a broker that has ended

    cdef uint64_t foresee(self, const uint8_t* topic, Py_ssize_t size) noexcept
    cdef Entry* find(self, const uint8_t* topic, Py_ssize_t size, uint64_t hash) except NULL
    cdef void _put(self, uint64_t hash, uint32_t place) noexcept
    cdef Entry* _resolve(self, uint64_t hash, const uint8_t* topic, Py_ssize_t size) except NULL
    cdef int _grow(self) except -1

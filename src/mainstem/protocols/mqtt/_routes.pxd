# cython: language_level=3
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef struct Entry:
    uint64_t hash
    void* topic  # bytes, owned
    void* route  # Route, owned; NULL: publishing there is refused with `reason`
    int reason
    int marks
    Py_ssize_t bytes_max


cdef class RouteTable:
    cdef Entry* entries
    cdef uint32_t mask
    cdef readonly uint32_t count
    cdef readonly uint32_t count_max
    cdef readonly uint64_t generation  # grows when it is emptied: what was found before must be found again
    cdef uint64_t seed
    cdef object resolve

    cdef Entry* find(self, const uint8_t* topic, Py_ssize_t size) except NULL
    cdef Entry* _place(self, uint64_t hash, const uint8_t* topic, Py_ssize_t size) noexcept
    cdef Entry* _resolve(self, uint64_t hash, const uint8_t* topic, Py_ssize_t size) except NULL
    cdef int _grow(self) except -1

# cython: language_level=3
from libc.stdint cimport uint8_t

cdef enum:
    PAGED_MIN = 4 << 20  # a capacity beyond it is a mapping of its own; up to it memory is malloc's

cdef uint8_t* grow(uint8_t* memory, Py_ssize_t used, Py_ssize_t* capacity, Py_ssize_t wanted, Py_ssize_t need) except NULL
cdef void release(uint8_t* memory, Py_ssize_t capacity, bint again) noexcept
cdef Py_ssize_t memory_taken(const uint8_t* memory, Py_ssize_t capacity, Py_ssize_t used) noexcept


cdef class Block:
    cdef uint8_t* memory
    cdef Py_ssize_t capacity, size
    cdef bint spoilt

# cython: language_level=3
from libc.stdint cimport int64_t


cdef class Leases:
    cdef int64_t* at
    cdef Py_ssize_t head
    cdef Py_ssize_t tail
    cdef readonly Py_ssize_t capacity
    cdef Py_ssize_t gone  # crossed out, from head to tail
    cdef Py_ssize_t expected  # where the next to be settled is likely to lie

    cdef int put(self, const int64_t* new, Py_ssize_t count) except -1
    cdef Py_ssize_t strike(self, const int64_t* wanted, Py_ssize_t count, int64_t* found) noexcept
    cdef Py_ssize_t find(self, int64_t position) noexcept
    cdef bint cross_out(self, int64_t position) noexcept
    cdef int insert(self, int64_t position) except -1
    cdef void trim(self) noexcept
    cdef int reserve(self, Py_ssize_t count) except -1

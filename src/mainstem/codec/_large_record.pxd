# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t


cdef class Bulk:
    cdef uint8_t* memory  # from `_large_memory`; ours
    cdef Py_ssize_t capacity, at, size

    @staticmethod
    cdef Bulk adopt(uint8_t* memory, Py_ssize_t capacity, Py_ssize_t at, Py_ssize_t size)


cdef class LargeRecord:
    cdef readonly object front  # both heads and the record up to its value
    cdef readonly object value
    cdef readonly bytes back  # its headers
    cdef readonly Py_ssize_t size
    cdef readonly int64_t time_ms
    cdef readonly int flags
    cdef object view  # of the value, kept so that it stays where it is
    cdef const uint8_t* value_at
    cdef Py_ssize_t value_size, key_at, key_size, headers_at
    cdef int header_count

# cython: language_level=3
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint64_t


cdef class Outgoing:
    cdef public object connection
    cdef public object ticker
    cdef public bint blocked
    cdef public bint dirty
    cdef public Py_ssize_t bytes_max  # collected in a turn: then deliveries wait for the next
    cdef public uint64_t messages
    cdef uint64_t counted  # of them, in the server's counters
    cdef PyObject* data  # bytes being filled; `buf` is where they lie
    cdef uint8_t* buf
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef Py_ssize_t expected

    cdef uint8_t* room(self, Py_ssize_t need) except NULL
    cdef int mark(self) except -1
    cdef int send_all(self, object transport, object connection) except -1
    cdef void _expect(self) noexcept

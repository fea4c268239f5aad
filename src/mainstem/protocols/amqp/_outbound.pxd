# cython: language_level=3
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from mainstem.broker._live cimport RecordRef


cdef class Outbound:
    cdef public object connection
    cdef public object ticker
    cdef public object describe
    cdef public object translate
    cdef public bint blocked
    cdef public bint dirty
    cdef public uint32_t frame_max
    cdef public Py_ssize_t bytes_max  # collected in a turn: then consumers wait for the next
    cdef public uint64_t messages
    cdef uint64_t counted  # of them, in the server's counters
    cdef public list stalled
    cdef PyObject* data  # bytes being filled; `buf` is where they lie
    cdef uint8_t* buf
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef Py_ssize_t expected
    cdef bytes last_topic
    cdef bytes last_exchange
    cdef bytes last_names
    cdef int last_flags

    cdef uint8_t* room(self, Py_ssize_t need) except NULL
    cdef int mark(self) except -1
    cdef int _send(self, object transport, object connection) except -1
    cdef void _expect(self) noexcept
    cdef int put_content(self, uint16_t channel, const uint8_t* properties, Py_ssize_t properties_size,
                         const uint8_t* body, Py_ssize_t body_size) except -1
    cdef bytes names_of(self, RecordRef record, const uint8_t* exchange, Py_ssize_t exchange_size, bint own_key)
    cdef int put_record(self, uint16_t channel, bytes head, uint64_t tag, bint redelivered, bytes tail,
                        RecordRef record, int attempts, object decorator) except -1

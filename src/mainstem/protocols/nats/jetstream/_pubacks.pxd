# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t

from mainstem.broker.streams._tap cimport StreamCounts
from mainstem.log._gather cimport Ticket


cdef struct Awaited:
    int index  # of the record in its batch
    Py_ssize_t reply_at, reply_size, more_at, more_size  # in `text`


cdef class PubAcks:
    cdef Gate gate
    cdef Awaited* at
    cdef Py_ssize_t count, capacity
    cdef uint8_t* text
    cdef Py_ssize_t text_size, text_capacity

    cdef int put(self, int index, const uint8_t* reply, Py_ssize_t reply_size, const uint8_t* more,
                 Py_ssize_t more_size) except -1
    cdef Py_ssize_t _keep(self, const uint8_t* data, Py_ssize_t size) except -1
    cdef int _send(self, int64_t first) except -1


cdef class Gate:
    cdef readonly StreamCounts stream
    cdef object jetstream
    cdef readonly object config  # of the stream, when this was made
    cdef bytes front  # of each PubAck
    cdef Py_ssize_t bytes_max  # of headers and payload
    cdef Ticket ticket  # of the batch that is open now, and who waits for it
    cdef PubAcks acks

    cdef PubAcks acks_of(self, Ticket ticket)

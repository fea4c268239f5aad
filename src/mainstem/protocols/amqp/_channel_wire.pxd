# cython: language_level=3
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t

from mainstem.broker.delivery._live cimport RecordRef
from mainstem.broker.queues._queue_sink cimport QueueSink, Taker
from mainstem.log._gather cimport Ticket
from mainstem.protocols.amqp._outbound cimport Outbound


cdef struct Held:
    int64_t position
    PyObject* consumer


cdef class ChannelWire:
    cdef public uint16_t number
    cdef public Outbound out
    cdef public object owner
    cdef public bint confirming
    cdef public bint buffering
    cdef public uint64_t published
    cdef public int64_t unacked
    cdef public bint settled
    cdef public int64_t unacked_max
    cdef public uint64_t next_tag
    cdef Held* held
    cdef Py_ssize_t head
    cdef Py_ssize_t tail
    cdef Py_ssize_t capacity
    cdef dict stragglers
    cdef list waiting
    cdef Ticket ticket  # of the publishes that a confirm is open for
    cdef bint persistent  # one of them is: the confirm waits for the disk, else for the tick that writes it
    cdef bint touched
    cdef bint closed
    cdef int expect
    cdef object target
    cdef int publish_flags
    cdef int look
    cdef int64_t time_ms
    cdef uint8_t* properties
    cdef Py_ssize_t properties_size
    cdef Py_ssize_t properties_capacity
    cdef uint8_t* body
    cdef Py_ssize_t body_size
    cdef Py_ssize_t body_at
    cdef Py_ssize_t body_capacity

    cdef uint64_t hold(self, object consumer, int64_t position) except 0
    cdef int settle(self, object consumer, int64_t position) except -1
    cdef int put_gap(self) except -1
    cdef uint64_t _tag_for(self, object holder, RecordRef record) except 0
    cdef int join_ticket(self, Ticket ticket, bint persistent) except -1
    cdef int compact(self) except -1
    cpdef acknowledge(self, uint64_t tag, bint multiple)


cdef class Consumer(Taker):
    cdef public ChannelWire channel
    cdef public QueueSink sink
    cdef public object tag
    cdef public object decorator
    cdef public int prefetch
    cdef public bint stalled
    cdef bytes head

    cpdef bint take(self, RecordRef record, bint redelivered, int attempts) except -1

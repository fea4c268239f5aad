# cython: language_level=3
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t, uint32_t

from mainstem.broker._live cimport RecordRef
from mainstem.broker.queues._lane cimport Lane, Taker
from mainstem.log._gather cimport Ticket


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
    cdef int put_record(self, ChannelWire channel, bytes head, uint64_t tag, bint redelivered, bytes tail,
                        RecordRef record, int attempts, object decorator) except -1


cdef struct Held:
    int64_t position
    PyObject* consumer


cdef class ChannelWire:
    cdef public uint16_t number
    cdef public Outbound out
    cdef public object session
    cdef public bint confirming
    cdef public bint buffering
    cdef public uint64_t published
    cdef public int64_t unacked
    cdef public int64_t unacked_max
    cdef public uint64_t next_tag
    cdef Held* held
    cdef Py_ssize_t head
    cdef Py_ssize_t tail
    cdef Py_ssize_t capacity
    cdef dict stragglers
    cdef list waiting
    cdef Ticket ticket
    cdef bint touched
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

    cdef uint64_t hold(self, object consumer, int64_t position) except 0
    cdef int settle(self, object consumer, int64_t position) except -1
    cdef int put_gap(self) except -1
    cdef int compact(self) except -1
    cpdef acknowledge(self, uint64_t tag, bint multiple)


cdef class Consumer(Taker):
    cdef public ChannelWire channel
    cdef public Lane lane
    cdef public object tag
    cdef public object decorator
    cdef public int prefetch
    cdef public bint stalled
    cdef bytes head

    cpdef bint take(self, RecordRef record, bint redelivered, int attempts) except -1

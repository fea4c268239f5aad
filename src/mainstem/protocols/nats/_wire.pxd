# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint64_t

from mainstem.broker.delivery._live cimport Dispatcher, Route
from mainstem.protocols._reactor cimport Intake
from mainstem.protocols._routes cimport RouteTable
from mainstem.protocols.nats._outbound cimport Outbound
from mainstem.protocols.nats.jetstream._pubacks cimport Gate


cdef enum:
    LINE_KEPT = 128  # bytes of the last publish's line


cdef struct Publish:
    # A PUB or HPUB in place.
    bint has_headers
    const uint8_t* subject
    Py_ssize_t subject_size
    const uint8_t* reply
    Py_ssize_t reply_size
    const uint8_t* headers  # the payload lies behind them
    Py_ssize_t head
    Py_ssize_t total


cdef class Inbound(Intake):
    cdef public Py_ssize_t payload_max
    cdef public Py_ssize_t line_max
    cdef public object connection
    cdef public object publisher  # None: every publish is an event
    cdef public Outbound outbound
    cdef public Dispatcher dispatcher
    cdef public bint fresh  # nothing came yet: the connection looks at it first
    cdef public bint verbose
    cdef public bint takes_headers
    cdef public bint no_responders
    cdef public bint published  # since the last command that must come after what was published
    cdef public bytes identity  # kept in records of a client that wants no echo
    cdef public uint64_t messages  # stored
    cdef public uint64_t messages_in  # all
    cdef public uint64_t bytes_in  # of their headers and payloads
    cdef bint direct  # this read may publish without being asked
    cdef RouteTable routes
    cdef int64_t time_ms
    cdef bytes data  # what `base` points into, unless it is lent
    cdef const uint8_t* base
    cdef Py_ssize_t at, size
    cdef uint8_t* tail  # a command that is not whole
    cdef Py_ssize_t tail_size, tail_capacity, tail_need
    cdef uint8_t* scratch
    cdef Py_ssize_t scratch_capacity
    cdef uint8_t[LINE_KEPT] line  # of the last publish, and what it says: the next one's is often the same
    cdef Py_ssize_t line_size
    cdef Publish line_publish
    cdef bytes last_subject
    cdef Route last_route
    cdef Py_ssize_t last_bytes_max
    cdef uint64_t last_generation
    cdef Gate last_gate  # of the stream that the last subject belongs to

    cdef bytes ack_front  # of the acks at hand: up to the consumer's name
    cdef bint acks_alone  # each needs a decision
    cdef int64_t* acks
    cdef Py_ssize_t ack_count, ack_capacity

    cdef int _own(self) except -1
    cdef int _begin(self) except -1
    cdef object _step(self)
    cdef object _parse(self)
    cdef bint _take_ack(self, Publish* publish) except -1
    cdef int _settle_acks(self) except -1
    cdef bint _fill_tail(self) except -1
    cdef int _keep(self, const uint8_t* at, Py_ssize_t size) except -1
    cdef object _finish_tail(self)
    cdef int _find_end(self, const uint8_t* at, Py_ssize_t size, Py_ssize_t* line, Publish* publish) except -1
    cdef void _keep_line(self, const uint8_t* at, Py_ssize_t size, Publish* publish) noexcept
    cdef object _line(self, const uint8_t* at, Py_ssize_t size)
    cdef object _take_publish(self, const uint8_t* at, Publish* publish)
    cdef bint _route(self, Publish* publish) except -1
    cdef bint _is_plain(self, Publish* publish) except -1
    cdef int _append(self, Publish* publish) except -1
    cdef Py_ssize_t _headers(self, Publish* publish, int* count) except -1

# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint64_t
from mainstem.broker.delivery._live cimport Route
from mainstem.protocols.mqtt.wire._publish cimport Fields
from mainstem.protocols.mqtt.wire._receipts cimport Receipts
from mainstem.protocols._routes cimport RouteTable


cdef enum:
    REFUSALS_NAMED = 100  # of one read: what is refused beyond is only counted
    AHEAD = 4  # packets: so long takes a slot of a large table to come from memory


cdef class Inbound(Receipts):
    cdef public Py_ssize_t packet_bytes_max
    cdef public int receive_max
    cdef public int alias_max
    cdef public bint authenticating  # CONNECT came, and CONNACK waits for what AUTH packets say
    cdef public bytes client_id
    cdef public object retained
    cdef public object connection  # whose bytes these are, and what it and its server share
    cdef public object server
    cdef public object publisher
    cdef public object now_ns
    cdef public RouteTable routes
    cdef readonly uint64_t messages
    cdef bytes data  # what owns the bytes at `base`; None if they lie in a buffer that is lent for one call
    cdef const uint8_t* base  # NULL: nothing is left to parse
    cdef Py_ssize_t at, size
    cdef uint8_t* tail
    cdef Py_ssize_t tail_size, tail_capacity, tail_need
    cdef Py_ssize_t noted  # of the tail, with what all connections keep
    cdef list aliases
    cdef uint8_t* scratch
    cdef Py_ssize_t scratch_capacity
    cdef bytes last_topic
    cdef Route last_route
    cdef int last_marks
    cdef Py_ssize_t last_bytes_max
    cdef uint64_t last_generation
    cdef int64_t time_ms
    cdef Py_ssize_t refused  # publishes of this read, by rules
    cdef bint roams  # the last publish had another topic than the one before: looking ahead pays
    cdef uint64_t hash  # of this packet's topic; 0: not known yet
    cdef uint64_t[AHEAD] hashes  # of the next packets' topics: a ring
    cdef int hashes_at, foreseen
    cdef Py_ssize_t scout  # where the packet after those begins

    cdef int _own(self) except -1
    cdef object _step(self)
    cdef object _packets(self)
    cdef uint64_t _foresee(self) noexcept
    cdef bint _fill_tail(self) except -1
    cdef int _keep(self, const uint8_t* at, Py_ssize_t size) except -1
    cdef int _note(self) except -1
    cdef object _packet(self, const uint8_t* packet, Py_ssize_t head, Py_ssize_t size)
    cdef object _publish(self, const uint8_t* packet, const uint8_t* at, const uint8_t* end)
    cdef bint _fits(self, Fields* fields) except -1
    cdef int _alias(self, Fields* fields) except -1
    cdef int _route(self, Fields* fields) except -1
    cdef int _append(self, Fields* fields) except -1
    cdef Py_ssize_t _headers(self, Fields* fields, int* count) except -1
    cdef object _large(self, Fields* fields)
    cdef object _event(self, Fields* fields)

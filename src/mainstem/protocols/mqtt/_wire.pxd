# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from mainstem.broker._live cimport Route
from mainstem.log._gather cimport Ticket
from mainstem.protocols._reactor cimport Intake
from mainstem.protocols.mqtt._outbound cimport Outbound
from mainstem.protocols.mqtt._routes cimport RouteTable


cdef class AckRun:
    cdef Ticket ticket
    cdef uint32_t* acks
    cdef int count
    cdef int capacity

    cdef int add(self, uint32_t ack) except -1


cdef struct Fields:
    # One PUBLISH in place.
    int qos
    int retain
    int packet_id
    const uint8_t* topic
    Py_ssize_t topic_size
    const uint8_t* properties
    Py_ssize_t properties_size
    const uint8_t* payload
    Py_ssize_t payload_size
    int alias
    Py_ssize_t alias_at  # where its property stands among the properties, -1: nowhere
    int is_text  # the payload says that it is UTF-8
    int is_special  # it has properties that the broker must look at


cdef class Inbound(Intake):
    cdef public int version
    cdef public Py_ssize_t packet_bytes_max
    cdef public int receive_max
    cdef public int alias_max
    cdef public bint durable
    cdef public bytes client_id
    cdef public object limits
    cdef public object retained
    cdef public object connection  # whose bytes these are, and what it and its server share
    cdef public object server
    cdef public object publisher
    cdef public object now_ns
    cdef public Outbound outbound
    cdef public RouteTable routes
    cdef readonly uint64_t messages
    cdef readonly int unacked
    cdef readonly int received_count
    cdef readonly bint waiting  # for PUBCOMPs, until the caller says what they wait for
    cdef bytes data  # what owns the bytes at `base`; None if they lie in a buffer that is lent for one call
    cdef const uint8_t* base  # NULL: nothing is left to parse
    cdef Py_ssize_t at, size
    cdef uint8_t* tail
    cdef Py_ssize_t tail_size, tail_capacity, tail_need
    cdef uint8_t* received
    cdef list aliases
    cdef object runs
    cdef AckRun last_run
    cdef AckRun completions
    cdef uint8_t* scratch
    cdef Py_ssize_t scratch_capacity
    cdef bytes last_topic
    cdef Route last_route
    cdef int last_marks
    cdef Py_ssize_t last_bytes_max
    cdef uint64_t last_generation
    cdef int64_t time_ms

    cdef int _own(self) except -1
    cdef object _step(self)
    cdef bint _fill_tail(self) except -1
    cdef int _keep(self, const uint8_t* at, Py_ssize_t size) except -1
    cdef object _packet(self, const uint8_t* packet, Py_ssize_t head, Py_ssize_t size)
    cdef object _publish(self, const uint8_t* packet, const uint8_t* at, const uint8_t* end)
    cdef int _fields(self, int flags, const uint8_t* at, const uint8_t* end, Fields* fields) except -1
    cdef int _properties(self, const uint8_t* at, const uint8_t* end, Fields* fields) except -1
    cdef int _alias(self, Fields* fields) except -1
    cdef int _route(self, Fields* fields) except -1
    cdef int _append(self, Fields* fields) except -1
    cdef Py_ssize_t _headers(self, Fields* fields, int* count) except -1
    cdef object _event(self, Fields* fields)
    cdef int _ack(self, int kind, int flags, const uint8_t* at, Py_ssize_t size) except -1
    cdef int _answer(self, Ticket ticket, int qos, int packet_id, int reason) except -1
    cdef int _send(self, AckRun run) except -1

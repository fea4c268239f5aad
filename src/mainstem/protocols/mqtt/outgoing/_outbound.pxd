# cython: language_level=3
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t
from mainstem.broker.delivery._live cimport RecordRef, Sink
from mainstem.protocols.mqtt.outgoing._encoder cimport Encoder, Grant


cdef enum:  # states of a slot
    FREE = 0
    AWAIT_PUBACK = 1
    AWAIT_PUBREC = 2
    AWAIT_PUBCOMP = 3

cdef enum:
    SLOTS_MIN = 32
    SLOTS_MAX = 65536


cdef struct Slot:
    int64_t stamp
    uint8_t state
    uint8_t sourced
    uint8_t unsent  # in flight from an earlier connection, and not sent on this one yet


cdef class Outbound(Sink):
    cdef public int version
    cdef public Py_ssize_t packet_bytes_max
    cdef public int window
    cdef public int alias_max
    cdef public bint durable
    cdef public bint explains  # refused publishes are answered with words, too
    cdef public bytes client_id
    cdef public object allows
    cdef public object session
    cdef public object connection
    cdef public object transport
    cdef readonly uint64_t bytes_sent
    cdef public object ticker
    cdef public Encoder encoder
    cdef readonly uint64_t messages
    cdef readonly int inflight
    cdef public bint progress  # an acknowledgement freed room or changed what a session keeps
    cdef bint dirty
    cdef PyObject* chunk
    cdef uint8_t* out
    cdef readonly Py_ssize_t out_size
    cdef Py_ssize_t out_capacity
    cdef Py_ssize_t out_expected  # what the last flush took: about what the next will take
    cdef Slot* slots
    cdef int slots_capacity
    cdef int last_id
    cdef int unsent  # slots that are
    cdef dict sources
    cdef dict aliases
    cdef bytearray held
    cdef list assigned
    cdef int holding
    cdef list recorded
    cdef dict moves
    cdef bint begun  # moves has a QoS 1 identifier that was given out

    cdef void _count(self, Py_ssize_t capacity) noexcept
    cdef int _flush_early(self, Py_ssize_t coming) except -1
    cdef uint8_t* _reserve(self, Py_ssize_t size) except NULL
    cdef int _mark(self) except -1
    cdef bint _is_own(self, RecordRef record) noexcept
    cdef bint _has_no_room(self, int qos) noexcept
    cdef int _flush_full(self) except -1
    cdef int _next_id(self) except -1
    cdef int _grow_to(self, int packet_id) except -1
    cdef bint _waits(self, int packet_id, int64_t stamp) noexcept
    cdef bint _send(self, RecordRef record, Grant grant, int qos, bint retain, object source) except -1
    cdef Py_ssize_t _emit(self, RecordRef record, Grant grant, int flags, int packet_id, bint aliased,
                          bint may_lend) except -1
    cdef int _copy_cached(self, RecordRef record) except -1
    cdef void _note_sent(self, int packet_id) noexcept
    cdef int _free(self, int packet_id, int reason) except -1
    cdef int _give_up(self, int packet_id) except -1
    cdef int _note_begun(self, int packet_id) except -1
    cdef int _note_ended(self, int packet_id) except -1
    cdef int acknowledge(self, int kind, int packet_id, int reason) except -1
    cdef int write_ack(self, int first, int packet_id, int reason) except -1

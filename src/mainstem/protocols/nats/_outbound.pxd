# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from mainstem.broker.delivery._live cimport RecordRef, Sink
from mainstem.protocols._outgoing cimport Outgoing


cdef int digits_of(Py_ssize_t value) noexcept nogil
cdef uint8_t* put_number(uint8_t* at, Py_ssize_t value, int digits) noexcept nogil

cdef enum:
    FRONT_KEPT = 128  # bytes of the last message's line


cdef class Subscription:
    cdef readonly object owner  # the connection
    cdef Outbound outbound
    cdef readonly bytes sid
    cdef readonly bytes filter  # canonical
    cdef readonly bytes queue
    cdef readonly bytes subject  # as the client spelled it
    cdef public int64_t start  # the stamp from which it counts
    cdef public uint64_t delivered
    cdef public uint64_t limit
    cdef public bint closed


cdef class Encoder:
    cdef object translate
    cdef dict subjects
    cdef RecordRef record
    cdef uint64_t serial
    cdef bint expired
    cdef bytes topic  # the last one seen, and its subject
    cdef bytes subject
    cdef bytes kept, kept_reply  # what the pointers point into, where that is not the record
    cdef const uint8_t* headers
    cdef Py_ssize_t headers_size
    cdef const uint8_t* reply
    cdef Py_ssize_t reply_size
    cdef const uint8_t* payload
    cdef Py_ssize_t payload_size

    cdef int load(self, RecordRef record) except -1


cdef class Outbound(Outgoing):
    cdef readonly Encoder encoder
    cdef public bint headers  # the client takes HMSG
    cdef public bytes identity  # of a client that wants no echo; empty: it does
    cdef public object allows  # called with each record's topic; None: it may read everything
    cdef readonly uint64_t bytes_out  # of headers and payloads
    cdef public bint waiting  # something was not taken for want of room
    cdef uint8_t[FRONT_KEPT] front  # the line of the last message without reply and headers, if the next one's is the same
    cdef Py_ssize_t front_size
    cdef Py_ssize_t front_total
    cdef Subscription front_one
    cdef bytes front_subject

    cdef bint is_full(self) noexcept
    cdef bint is_own(self, RecordRef record) noexcept
    cdef bint deliver(self, Subscription one, RecordRef record) except -1
    cdef uint8_t* _put_line(self, uint8_t* at, Subscription one, bytes subject, const uint8_t* reply,
                            Py_ssize_t reply_size, Py_ssize_t head, Py_ssize_t total) noexcept
    cdef int put(self, Subscription one, bytes subject, const uint8_t* reply, Py_ssize_t reply_size,
                 const uint8_t* headers, Py_ssize_t headers_size,
                 const uint8_t* payload, Py_ssize_t payload_size, object owner) except -1
    cdef int _lend(self, object owner, const uint8_t* payload, Py_ssize_t size) except -1


cdef class PlainSink(Sink):
    cdef Outbound outbound
    cdef object connection


cdef class GroupSink(Sink):
    cdef readonly dict members  # by filter
    cdef uint32_t random

# cython: language_level=3
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from mainstem.broker.delivery._live cimport RecordRef
from mainstem.protocols._outgoing cimport Outgoing


cdef class Outbound(Outgoing):
    cdef public object describe
    cdef public object translate
    cdef public uint32_t frame_max
    cdef public list stalled
    cdef bytes last_topic
    cdef bytes last_exchange
    cdef bytes last_names
    cdef int last_flags

    cdef int put_content(self, uint16_t channel, const uint8_t* properties, Py_ssize_t properties_size,
                         const uint8_t* body, Py_ssize_t body_size) except -1
    cdef uint8_t* _put_head(self, uint8_t* at, uint16_t channel, const uint8_t* properties, Py_ssize_t properties_size,
                            Py_ssize_t body_size) noexcept
    cdef int _put_lent(self, uint16_t channel, const uint8_t* properties, Py_ssize_t properties_size,
                       RecordRef record) except -1
    cdef bytes names_of(self, RecordRef record, const uint8_t* exchange, Py_ssize_t exchange_size, bint own_key)
    cdef int put_record(self, uint16_t channel, bytes head, uint64_t tag, bint redelivered, bytes tail,
                        RecordRef record, int attempts, object decorator) except -1

# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint64_t
from mainstem.broker.delivery._live cimport RecordRef


cdef class Grant:
    cdef readonly int qos
    cdef readonly bint no_local
    cdef readonly Grant own
    cdef readonly bint retain_as_published
    cdef readonly bint meta
    cdef readonly bytes identifiers
    cdef readonly int packet_id


cdef class Encoder:
    cdef public int64_t now_ns
    cdef public object translate
    cdef public object describe
    cdef RecordRef record
    cdef uint64_t serial
    cdef const uint8_t* properties
    cdef Py_ssize_t properties_size
    cdef bytes kept
    cdef bint expired
    cdef uint8_t* packets[2]
    cdef Py_ssize_t packet_sizes[2]
    cdef Py_ssize_t packet_capacities[2]

    cdef int load(self, RecordRef record) except -1
    cdef int _expire(self, RecordRef record) except -1

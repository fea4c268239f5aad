# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from mainstem.broker._live cimport Route
from mainstem.protocols.amqp._outbound cimport ChannelWire


cdef class Target:
    cdef public Route route
    cdef public object exchange
    cdef public object key
    cdef public int flags
    cdef public bytes head
    cdef public int head_count
    cdef public bint plain
    cdef bytes raw
    cdef uint64_t epoch


cdef class TargetTable:
    cdef public object resolve
    cdef public uint64_t epoch
    cdef dict targets
    cdef Target last

    cdef Target find(self, const uint8_t* raw, Py_ssize_t size)


cdef class Inbound:
    cdef public TargetTable targets
    cdef public uint32_t frame_max
    cdef public int64_t body_bytes_max
    cdef public int channel_number
    cdef public uint32_t method_number
    cdef public uint64_t messages
    cdef list channels
    cdef list touched
    cdef bytes data
    cdef Py_ssize_t at
    cdef bytes more  # what follows the frame in `data`, from `more_at` on
    cdef Py_ssize_t more_at

    cdef Py_ssize_t _missing(self)
    cdef object _next(self, int64_t time_ms)
    cdef int header_frame(self, ChannelWire channel, const uint8_t* payload, Py_ssize_t size) except -1
    cdef object finish(self, ChannelWire channel, const uint8_t* body, Py_ssize_t size, int64_t time_ms)
    cdef int begin(self, ChannelWire channel, const uint8_t* payload, Py_ssize_t size) except -1

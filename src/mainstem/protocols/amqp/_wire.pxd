# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from mainstem.broker.delivery._live cimport Route
from mainstem.protocols._reactor cimport Intake
from mainstem.protocols.amqp._channel_wire cimport ChannelWire
from mainstem.protocols.amqp._outbound cimport Outbound


cdef class Target:
    cdef public Route route
    cdef public object exchange
    cdef public object key
    cdef public int flags
    cdef public bytes head
    cdef public int head_count
    cdef public bint plain
    cdef public bint live  # nothing is stored: a persistent publish must be refused
    cdef bytes raw
    cdef uint64_t epoch


cdef class TargetTable:
    cdef public object resolve
    cdef public uint64_t epoch
    cdef dict targets
    cdef Target last

    cdef Target find(self, const uint8_t* raw, Py_ssize_t size)


cdef class Inbound(Intake):
    cdef object connection
    cdef Outbound out
    cdef public TargetTable targets
    cdef public uint32_t frame_max
    cdef public int64_t body_bytes_max
    cdef public int channel_number
    cdef public uint32_t method_number
    cdef public uint64_t messages
    cdef list channels
    cdef list touched
    cdef Py_ssize_t bodies  # memory of contents that are not whole yet, on all channels
    cdef bint is_out_of_step
    cdef bint acked  # since the read began
    cdef bint unchecked  # whether what it publishes to is still as it was, in this read
    cdef const uint8_t* base  # what is being read, up to `size`; `data` owns it, or it is the socket's for this turn
    cdef Py_ssize_t size
    cdef Py_ssize_t at
    cdef bytes data
    cdef const uint8_t* more_base  # what follows it, if a cut frame was put together before
    cdef Py_ssize_t more_size
    cdef bytes more

    cdef int _feed(self, const uint8_t* data, Py_ssize_t size, bytes owner) except -1
    cdef int _join(self, const uint8_t* data, Py_ssize_t size) except -1
    cdef int _keep(self) except -1
    cpdef object next(self, int64_t time_ms)
    cdef int _add_body(self, ChannelWire channel, const uint8_t* piece, Py_ssize_t size) except -1
    cdef int _free_body(self, ChannelWire channel) except -1
    cdef object _out_of_step(self, fault)
    cdef object _next(self, int64_t time_ms)
    cdef int header_frame(self, ChannelWire channel, const uint8_t* payload, Py_ssize_t size) except -1
    cdef object finish(self, ChannelWire channel, const uint8_t* body, Py_ssize_t size, int64_t time_ms)
    cdef object _large(self, ChannelWire channel, Target target, bytes headers, int flags, int64_t time_ms)
    cdef int begin(self, ChannelWire channel, const uint8_t* payload, Py_ssize_t size) except -1

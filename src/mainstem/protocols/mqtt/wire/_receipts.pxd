# cython: language_level=3
from libc.stdint cimport uint8_t, uint32_t
from mainstem.log._gather cimport Ticket
from mainstem.protocols._reactor cimport Intake
from mainstem.protocols.mqtt.outgoing._outbound cimport Outbound


cdef class AckRun:
    cdef Ticket ticket
    cdef uint32_t* acks
    cdef int count
    cdef int capacity

    cdef int add(self, uint32_t ack) except -1


cdef class Receipts(Intake):
    cdef public object limits
    cdef public int version
    cdef public bint durable
    cdef public Outbound outbound
    cdef readonly int unacked
    cdef readonly int received_count
    cdef readonly bint waiting  # for PUBCOMPs, until the caller says what they wait for
    cdef uint8_t* received
    cdef object runs
    cdef AckRun last_run
    cdef AckRun completions

    cdef int _ack(self, int kind, int flags, const uint8_t* at, Py_ssize_t size) except -1
    cdef int _complete_again(self, int packet_id) except -1
    cdef int _answer(self, Ticket ticket, int qos, int packet_id, int reason) except -1
    cdef int _send(self, AckRun run) except -1
    cdef bint _undo(self, AckRun run) except -1
    cdef int _begin_received(self) except -1

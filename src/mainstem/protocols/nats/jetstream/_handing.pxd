# cython: language_level=3
from libc.stdint cimport uint8_t

from mainstem.broker.streams._tap cimport Handed
from mainstem.protocols.nats._outbound cimport Encoder, Subscription


cdef class Target:
    cdef readonly object pull
    cdef readonly Subscription one
    cdef readonly Py_ssize_t left
    cdef readonly Py_ssize_t given


cdef class Handing(Handed):
    cdef Encoder encoder
    cdef list targets
    cdef Py_ssize_t turn  # whose it is
    cdef bytes front  # of the reply subject
    cdef uint8_t* reply

# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint32_t
from mainstem.codec._batch cimport BatchBuilder


cdef class Ticket:
    cdef public object log
    cdef public int64_t base_offset
    cdef public int64_t end_offset
    cdef public int64_t stamp
    cdef public bint stable
    cdef public object error
    cdef list waiters

    cpdef wait(self, waiter)
    cpdef release(self)
    cpdef fail(self, error)


cdef class TopicRef:
    cdef public bytes topic
    cdef public uint32_t number
    cdef public object log
    cdef public list gathers

    cdef Gather gather(self, int origin)


cdef class Gather(BatchBuilder):
    cdef public object log
    cdef public int origin
    cdef public int kind
    cdef public Ticket ticket
    cdef public list routes
    cdef uint32_t* numbers
    cdef int numbers_capacity

    cdef int _number(self, int index, uint32_t number) except -1
    cdef int put_routed(self, TopicRef route, const uint8_t* key, Py_ssize_t key_len,
                        const uint8_t* value, Py_ssize_t value_len,
                        const uint8_t* headers, Py_ssize_t headers_len, int header_count,
                        int64_t time_ms, uint8_t flags) except -1

# cython: language_level=3
from libc.stdint cimport int64_t

from mainstem.cursor._leases cimport Leases


cdef class QueueCore:
    cdef public int64_t next
    cdef public int64_t head
    cdef public int64_t unread
    cdef public int64_t exceptions_max
    cdef public bint journaled
    cdef public object order
    cdef public dict dead
    cdef public Leases _leased
    cdef public set _leased_again
    cdef public list _released
    cdef public dict _delayed
    cdef public dict _deadline_of
    cdef public list _deadlines
    cdef public list _due
    cdef public dict _attempts
    cdef public list _pending

    cdef bint is_plain(self)
    cdef bint is_timed(self)
    cdef int64_t count_ready(self) except -1
    cdef int64_t count_room(self) except? -1
    cpdef int enter(self, int64_t last, int64_t count=*) except -1
    cdef int lease(self, const int64_t* positions, Py_ssize_t count) except -1
    cpdef int pass_over(self, int64_t position, int64_t count) except -1
    cdef Py_ssize_t settle(self, int64_t* positions, Py_ssize_t count) except -1
    cpdef int _advance(self, int64_t position, int64_t count) except -1
    cpdef int _note_head(self) except -1
    cpdef int _note(self, object op, object arguments) except -1

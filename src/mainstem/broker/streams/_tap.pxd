# cython: language_level=3
from libc.stdint cimport int64_t, uint32_t

from mainstem.broker.delivery._live cimport Sink


cdef class Sizes:
    cdef uint32_t* at  # of offset n at n & mask; 0: not known
    cdef int64_t mask
    cdef int64_t count_max
    cdef readonly int64_t start  # sizes of [start, end) are here
    cdef readonly int64_t end

    cdef int put(self, int64_t offset, uint32_t size) except -1
    cdef int _grow(self) except -1


cdef class StreamCounts:
    cdef public int64_t messages
    cdef public int64_t stored_bytes
    cdef public int64_t first
    cdef public int64_t last_seq
    cdef public int64_t last_stamp
    cdef public int64_t gathered
    cdef public set gathered_topics
    cdef public bytes last_id
    cdef public bint counts_only
    cdef public bint takes_plain
    cdef readonly Sizes sizes

    cdef int add_written(self, int64_t offset, int64_t stamp, Py_ssize_t size) except -1


cdef class Tap(Sink):
    cdef StreamCounts stream
    cdef object log


cdef class Handed(Sink):
    cdef int64_t[::1] offsets
    cdef readonly Py_ssize_t count  # of messages that were taken
    cdef int64_t consumer_seq
    cdef int64_t pending

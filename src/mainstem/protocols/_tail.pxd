# cython: language_level=3
# What has come of a message that is not whole: in a buffer of its own, which grows to the next power of two.
from libc.stdint cimport uint8_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

cdef enum:
    TAIL_BYTES_MIN = 64


cdef inline int keep_tail(
    uint8_t** tail, Py_ssize_t* tail_size, Py_ssize_t* tail_capacity, const uint8_t* at, Py_ssize_t size
) except -1:
    """Append `size` bytes; with 0 the buffer is just there."""
    cdef Py_ssize_t capacity = tail_capacity[0] if tail_capacity[0] else TAIL_BYTES_MIN
    cdef uint8_t* grown
    while capacity < tail_size[0] + size:
        capacity *= 2
    if capacity != tail_capacity[0]:
        grown = <uint8_t*>realloc(tail[0], capacity)
        if grown == NULL:
            raise MemoryError
        tail[0], tail_capacity[0] = grown, capacity
    if size:
        memcpy(tail[0] + tail_size[0], at, size)
        tail_size[0] += size
    return 0

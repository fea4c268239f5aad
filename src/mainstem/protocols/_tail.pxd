# cython: language_level=3
# What has come of a message that is not whole: in a buffer of its own, which grows to the next power of two; that of a large
# one, once a part of it is here, to what it needs. It is given up by `release`.
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from mainstem.codec._large_memory cimport grow

cdef enum:
    TAIL_BYTES_MIN = 64


cdef inline int keep_tail(
    uint8_t** tail, Py_ssize_t* tail_size, Py_ssize_t* tail_capacity, const uint8_t* at, Py_ssize_t size, Py_ssize_t need
) except -1:
    """Append `size` bytes; with 0 the buffer is just there. `need`: of the whole message, or 0 if that is not known."""
    cdef Py_ssize_t capacity = tail_capacity[0] if tail_capacity[0] else TAIL_BYTES_MIN
    while capacity < tail_size[0] + size:
        capacity *= 2
    if capacity > tail_capacity[0]:
        tail[0] = grow(tail[0], tail_size[0], tail_capacity, capacity, need)
    if size:
        memcpy(tail[0] + tail_size[0], at, size)
        tail_size[0] += size
    return 0

# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Output that is not copied: a socket's list of what waits has bytes, and parts of others' memory."""

from libc.stdint cimport uint8_t


cdef class Lent:
    """Bytes that stay where they lie until a socket has taken them; their owner is kept for as long."""


cdef Lent lend(object owner, const uint8_t* at, Py_ssize_t size):
    cdef Lent lent = Lent.__new__(Lent)
    lent.owner, lent.at, lent.size = owner, at, size
    return lent

# cython: language_level=3
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t


cdef class Lent:
    cdef object owner
    cdef const uint8_t* at
    cdef Py_ssize_t size


cdef Lent lend(object owner, const uint8_t* at, Py_ssize_t size)


cdef inline const uint8_t* piece_at(object piece) noexcept:
    return (<Lent>piece).at if type(piece) is Lent else <const uint8_t*>PyBytes_AS_STRING(<bytes>piece)


cdef inline Py_ssize_t piece_size(object piece) noexcept:
    return (<Lent>piece).size if type(piece) is Lent else PyBytes_GET_SIZE(<bytes>piece)

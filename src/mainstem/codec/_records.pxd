# cython: language_level=3
from libc.stdint cimport uint8_t


cdef int check_walk(const uint8_t* at, const uint8_t* end, int count, int last_delta, int* place) noexcept nogil
cdef object records_fault(int fault, int place, int count)

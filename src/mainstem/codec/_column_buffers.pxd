# cython: language_level=3
from mainstem.codec._runs cimport Binary, Run


cdef class Block:
    cdef Run run

cdef Block take_run(Run* run)
cdef tuple take_binary(Binary* column)

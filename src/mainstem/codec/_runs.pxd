# cython: language_level=3
"""Buffers that grow while a column is filled; inlined into the modules that fill columns."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

cdef struct Run:
    char* data
    size_t size
    size_t room


cdef inline int grow(Run* run, size_t more) except -1 nogil:
    cdef size_t room = run.room * 2 if run.room else 4096
    while room < run.size + more:
        room *= 2
    cdef char* data = <char*>realloc(run.data, room)
    if data == NULL:
        with gil:
            raise MemoryError()
    run.data = data
    run.room = room
    return 0


cdef inline int put_bytes(Run* run, const char* data, size_t size) except -1 nogil:
    if run.size + size > run.room:
        grow(run, size)
    memcpy(run.data + run.size, data, size)
    run.size += size
    return 0


cdef inline int put_i32(Run* run, int32_t number) except -1 nogil:
    if run.size + 4 > run.room:
        grow(run, 4)
    (<int32_t*>(run.data + run.size))[0] = number
    run.size += 4
    return 0


cdef inline int put_i64(Run* run, int64_t number) except -1 nogil:
    if run.size + 8 > run.room:
        grow(run, 8)
    (<int64_t*>(run.data + run.size))[0] = number
    run.size += 8
    return 0


cdef inline int put_bit(Run* run, size_t index, bint is_set) except -1 nogil:
    if index >> 3 >= run.size:
        if run.size + 1 > run.room:
            grow(run, 1)
        run.data[run.size] = 0
        run.size += 1
    if is_set:
        run.data[index >> 3] |= <char>(1 << (index & 7))
    return 0


cdef struct Binary:
    # A column of variable size; offsets has one more entry than there are rows.
    Run valid
    Run offsets
    Run data
    int64_t rows
    int64_t nulls


cdef inline int put_value(Binary* column, const char* data, int64_t size) except -1 nogil:
    """A size below 0 is null."""
    if column.rows == 0:
        put_i32(&column.offsets, 0)
    put_bit(&column.valid, <size_t>column.rows, size >= 0)
    if size > 0:
        put_bytes(&column.data, data, <size_t>size)
    elif size < 0:
        column.nulls += 1
    column.rows += 1
    put_i32(&column.offsets, <int32_t>column.data.size)
    return 0

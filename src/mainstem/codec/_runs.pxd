# cython: language_level=3
"""Buffers that grow while a column is filled; inlined into the modules that fill columns."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy, memset

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


cdef inline int make_room(Run* run, size_t more) except -1 nogil:
    if run.size + more > run.room:
        grow(run, more)
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


cdef inline int put_octets(Run* run, const int64_t* words, int64_t count, int shift) except -1 nogil:
    """One byte of each word, as int32."""
    cdef int32_t* out
    cdef int64_t i
    make_room(run, 4 * <size_t>count)
    out = <int32_t*>(run.data + run.size)
    for i in range(count):
        out[i] = <int32_t>(words[i] >> shift & 0xFF)
    run.size += 4 * <size_t>count
    return 0


cdef struct Binary:
    # A column of variable size; offsets has one more entry than there are rows.
    Run valid
    Run offsets
    Run data
    int64_t rows
    int64_t nulls
    int64_t absent  # nulls behind the rows, only counted so far: they come in long runs


cdef inline int put_value(Binary* column, const char* data, int64_t size) except -1 nogil:
    """A size below 0 is null. Validity is written from the first null on: most columns have none."""
    if size < 0:
        column.absent += 1
        return 0
    if column.absent:
        put_absent(column)
    if column.rows == 0:
        put_i32(&column.offsets, 0)
    if size > 0:
        put_bytes(&column.data, data, <size_t>size)
    if column.nulls > 0:
        put_bit(&column.valid, <size_t>column.rows, True)
    column.rows += 1
    put_i32(&column.offsets, <int32_t>column.data.size)
    return 0


cdef inline int put_absent(Binary* column) except -1 nogil:
    """The nulls that were only counted; to be called before a column is taken, or data is put by other means."""
    cdef int64_t count = column.absent, i
    cdef int32_t end = <int32_t>column.data.size
    cdef int32_t* out
    cdef size_t size = <size_t>(column.rows + count + 7) >> 3
    if column.rows == 0:
        put_i32(&column.offsets, 0)
    if column.nulls == 0:
        all_valid(&column.valid, <size_t>column.rows)
    make_room(&column.valid, size - column.valid.size)
    memset(column.valid.data + column.valid.size, 0, size - column.valid.size)
    column.valid.size = size
    make_room(&column.offsets, 4 * <size_t>count)
    out = <int32_t*>(column.offsets.data + column.offsets.size)
    for i in range(count):
        out[i] = end
    column.offsets.size += 4 * <size_t>count
    column.rows += count
    column.nulls += count
    column.absent = 0
    return 0


cdef inline int all_valid(Run* run, size_t rows) except -1 nogil:
    cdef size_t size = (rows + 7) >> 3
    make_room(run, size)
    memset(run.data, 0xFF, size)
    if rows & 7:
        run.data[size - 1] = <char>((1 << (rows & 7)) - 1)
    run.size = size
    return 0


# Many values without a null at once: room for all of them is made first, then each is put without a look at it.

cdef enum:
    PADDING_BYTES = 32


cdef inline int begin_values(Binary* column, int64_t count, int64_t size) except -1 nogil:
    if column.rows == 0:
        put_i32(&column.offsets, 0)
    make_room(&column.offsets, 4 * <size_t>count)
    return make_room(&column.data, <size_t>size + PADDING_BYTES)


cdef inline int32_t copy_padded(Run* run, const char* source, size_t size) noexcept nogil:
    """Append what lies in a buffer that goes on for PADDING_BYTES behind it, as the run's own does; returns the run's end."""
    cdef char* to = run.data + run.size
    memcpy(to, source, PADDING_BYTES)
    if size > PADDING_BYTES:
        memcpy(to + PADDING_BYTES, source + PADDING_BYTES, size - PADDING_BYTES)
    run.size += size
    return <int32_t>run.size


cdef inline void end_values(Binary* column, int32_t end) noexcept nogil:
    (<int32_t*>(column.offsets.data + column.offsets.size))[0] = end
    column.offsets.size += 4
    column.rows += 1

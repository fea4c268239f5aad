# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Positions as the run lists of a queue's journal, where a turn's thousands are written. See `queue_journal.py`.

Its oracle is `tests/oracles/position_runs.py`.
"""

from array import array

from cpython cimport array as arrays
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef enum:
    VARINT_BYTES_MAX = 10
    TOKEN_VARINTS = 3


def ascending(positions):
    """The same positions in ascending order, packed; they are distinct."""
    cdef arrays.array packed
    cdef Py_ssize_t n
    if isinstance(positions, array):
        packed = positions
        for n in range(1, len(packed)):
            if packed.data.as_longlongs[n] < packed.data.as_longlongs[n - 1]:
                break
        else:
            return packed
    return array("q", sorted(positions))


def run_list(arrays.array positions not None, int64_t last):
    """Ascending positions as arithmetic runs, the first as its distance from `last`."""
    cdef const int64_t* at = <const int64_t*>positions.data.as_longlongs
    cdef Py_ssize_t count = len(positions), n = 0, run, runs = count_runs(at, count)
    cdef uint8_t* start
    cdef uint8_t* to
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, VARINT_BYTES_MAX * (1 + runs * TOKEN_VARINTS))
    start = to = <uint8_t*>PyBytes_AS_STRING(packed)
    to = put_varint(to, <uint64_t>runs)
    while n < count:
        run = run_length(at + n, count - n)
        to = put_varint(to, (<uint64_t>(at[n] - last) << 1) ^ <uint64_t>((at[n] - last) >> 63))
        to = put_varint(to, <uint64_t>(run - 1))
        if run > 1:
            to = put_varint(to, <uint64_t>(at[n + 1] - at[n]))
        n += run
        last = at[n - 1]
    return packed[:to - start]


cdef Py_ssize_t count_runs(const int64_t* at, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t n = 0, runs = 0
    while n < count:
        n += run_length(at + n, count - n)
        runs += 1
    return runs


cdef Py_ssize_t run_length(const int64_t* at, Py_ssize_t count) noexcept nogil:
    """How many from the first on have the same distance each."""
    cdef Py_ssize_t n = 2
    cdef int64_t gap
    if count < 2:
        return count
    gap = at[1] - at[0]
    while n < count and at[n] - at[n - 1] == gap:
        n += 1
    return n


cdef uint8_t* put_varint(uint8_t* to, uint64_t value) noexcept nogil:
    while value > 0x7F:
        to[0] = <uint8_t>(value & 0x7F | 0x80)
        to += 1
        value >>= 7
    to[0] = <uint8_t>value
    return to + 1

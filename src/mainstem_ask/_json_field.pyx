# cython: language_level=3, boundscheck=False, wraparound=False
"""See json_field.py."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

cdef extern from "_json_scan.h":
    ctypedef struct ask_step:
        const uint8_t* name
        size_t size
        int64_t index
    ctypedef struct ask_seek:
        const ask_step* steps
        int count
        int kind
        const uint8_t* at
        size_t size
    void ask_json(const uint8_t* p, size_t size, ask_seek* seek) nogil
    double ask_double(const uint8_t* p, size_t size) nogil
    int ASK_STRANGE, ASK_MISSING, ASK_NULL, ASK_NUMBER, ASK_NESTED

cdef enum:
    STEPS_MAX = 16


cdef int _steps(tuple path, ask_step* steps) except -1:
    cdef int number
    if len(path) > STEPS_MAX:
        raise ValueError("the path does not fit")
    for number, step in enumerate(path):
        if isinstance(step, bytes):
            steps[number].name, steps[number].size = <const uint8_t*><bytes>step, len(step)
        else:
            steps[number].name, steps[number].size, steps[number].index = NULL, 0, step
    return <int>len(path)


def find_fields(
    const uint8_t[::1] data, const int32_t[::1] offsets, Py_ssize_t rows, tuple path,
    uint8_t[::1] kinds, int32_t[::1] starts, int32_t[::1] sizes,
):
    cdef ask_step steps[STEPS_MAX]
    cdef ask_seek seek
    cdef const uint8_t* base = &data[0] if data.shape[0] else <const uint8_t*>b""
    cdef Py_ssize_t row
    if rows < 0 or offsets.shape[0] < rows + 1 or kinds.shape[0] < rows or starts.shape[0] < rows or sizes.shape[0] < rows:
        raise ValueError("the buffers do not fit")
    if rows and offsets[rows] > data.shape[0]:
        raise ValueError("the buffers do not fit")
    seek.steps, seek.count = steps, _steps(path, steps)
    with nogil:
        for row in range(rows):
            ask_json(base + offsets[row], offsets[row + 1] - offsets[row], &seek)
            kinds[row] = <uint8_t>seek.kind
            starts[row] = <int32_t>(seek.at - base)
            sizes[row] = <int32_t>seek.size


def take_texts(
    const uint8_t[::1] data, const int32_t[::1] offsets, Py_ssize_t rows, tuple path,
    uint8_t[::1] kinds, int32_t[::1] ends, uint8_t[::1] valid, uint8_t[::1] made,
):
    """While a row is at hand: its field is copied, which is what a scan over all rows afterwards would wait for."""
    cdef ask_step steps[STEPS_MAX]
    cdef ask_seek seek
    cdef const uint8_t* base = &data[0] if data.shape[0] else <const uint8_t*>b""
    cdef Py_ssize_t row, left = 0
    cdef int32_t end = 0
    if rows < 0 or offsets.shape[0] < rows + 1 or kinds.shape[0] < rows or ends.shape[0] < rows + 1:
        raise ValueError("the buffers do not fit")
    if valid.shape[0] * 8 < rows or made.shape[0] < data.shape[0] or (rows and offsets[rows] > data.shape[0]):
        raise ValueError("the buffers do not fit")
    seek.steps, seek.count = steps, _steps(path, steps)
    with nogil:
        for row in range(rows):
            ask_json(base + offsets[row], offsets[row + 1] - offsets[row], &seek)
            kinds[row] = <uint8_t>seek.kind
            if seek.kind == ASK_STRANGE or seek.kind == ASK_NESTED:
                left += 1
            elif seek.kind != ASK_MISSING and seek.kind != ASK_NULL:
                valid[row >> 3] |= <uint8_t>(1 << (row & 7))
                memcpy(&made[0] + end, seek.at, seek.size)
                end += <int32_t>seek.size
            ends[row + 1] = end
    return left


def numbers(const uint8_t[::1] data, const uint8_t[::1] kinds, const int32_t[::1] starts, const int32_t[::1] sizes, double[::1] made):
    cdef Py_ssize_t row
    if starts.shape[0] < kinds.shape[0] or sizes.shape[0] < kinds.shape[0] or made.shape[0] < kinds.shape[0]:
        raise ValueError("the buffers do not fit")
    with nogil:
        for row in range(kinds.shape[0]):
            if kinds[row] == ASK_NUMBER:
                made[row] = ask_double(&data[0] + starts[row], sizes[row])


def gather(const uint8_t[::1] data, const int32_t[::1] starts, const int32_t[::1] offsets, uint8_t[::1] made):
    cdef Py_ssize_t row, rows = offsets.shape[0] - 1
    if rows <= 0 or offsets[rows] == 0:
        return
    if starts.shape[0] < rows or made.shape[0] < offsets[rows]:
        raise ValueError("the buffers do not fit")
    with nogil:
        for row in range(rows):
            memcpy(&made[0] + offsets[row], &data[0] + starts[row], offsets[row + 1] - offsets[row])

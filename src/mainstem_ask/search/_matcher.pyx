# cython: language_level=3, boundscheck=False, wraparound=False
"""See matcher.py."""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcmp, memmove

cdef extern from "_find.h":
    const uint8_t* ask_find(const uint8_t* hay, size_t size, const uint8_t* needle, size_t length) nogil

cdef enum:
    HEAD = 48
    BATCH_HEAD = 61
    KIND_DATA = 1
    NEEDLES_MAX = 64


cdef inline bint of_word(uint8_t one) noexcept nogil:
    return one >= 0x80 or one == 95 or 48 <= one <= 57 or 65 <= one <= 90 or 97 <= one <= 122


cdef inline uint32_t big32(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


def mark_rows(
    const uint8_t[::1] data, const int32_t[::1] offsets, Py_ssize_t rows, bytes needle, bint whole_start, bint whole_end,
    uint8_t[::1] marks,
):
    cdef const uint8_t* wanted = needle
    cdef size_t length = len(needle)
    cdef const uint8_t* base = &data[0] if data.shape[0] else NULL
    if rows <= 0 or base == NULL or length == 0:
        return
    if offsets.shape[0] < rows + 1 or marks.shape[0] < rows or offsets[rows] > data.shape[0]:
        raise ValueError("the buffers do not fit")
    with nogil:
        _mark(base, &offsets[0], rows, wanted, length, whole_start, whole_end, &marks[0])


cdef void _mark(
    const uint8_t* base, const int32_t* offsets, Py_ssize_t rows, const uint8_t* needle, size_t length,
    bint whole_start, bint whole_end, uint8_t* marks,
) noexcept nogil:
    """One search over the values as they lie behind each other; a place is then the row it falls into."""
    cdef const uint8_t* at = base + offsets[0]
    cdef const uint8_t* end = base + offsets[rows]
    cdef Py_ssize_t row = 0, low, high, middle
    cdef const uint8_t* found
    cdef const uint8_t* row_start
    cdef const uint8_t* row_end
    while at < end:
        found = ask_find(at, end - at, needle, length)
        if found == NULL:
            return
        low, high = row, rows  # the row that the first byte is of: offsets[low] <= place < offsets[low + 1]
        while low + 1 < high:
            middle = (low + high) // 2
            if offsets[middle] <= found - base:
                low = middle
            else:
                high = middle
        row = low
        row_start, row_end = base + offsets[row], base + offsets[row + 1]
        if (
            found + length <= row_end
            and not (whole_start and found > row_start and of_word((found - 1)[0]))
            and not (whole_end and found + length < row_end and of_word(found[length]))
        ):
            marks[row] = 1
            at = row_end  # the next record
            row += 1
        else:
            at = found + 1


def keep_frames(uint8_t[::1] buffer, Py_ssize_t size, tuple needles):
    cdef const uint8_t* wanted[NEEDLES_MAX]
    cdef size_t lengths[NEEDLES_MAX]
    cdef int count = min(len(needles), NEEDLES_MAX)
    cdef Py_ssize_t consumed = 0, kept = 0, frame
    cdef uint8_t* base = &buffer[0] if size > 0 else NULL
    cdef bint everything = len(needles) == 0 or len(needles) > NEEDLES_MAX
    cdef bint damaged = False
    if size > buffer.shape[0]:
        raise ValueError("more than the buffer holds")
    for number in range(count):
        wanted[number], lengths[number] = <const uint8_t*><bytes>needles[number], len(needles[number])
    with nogil:
        while consumed + HEAD <= size:
            if memcmp(base + consumed, b"MSF1", 4) != 0:
                damaged = True
                break
            frame = HEAD + <Py_ssize_t>big32(base + consumed + 8)
            if consumed + frame > size:
                break
            if everything or _may_hold(base + consumed, frame, wanted, lengths, count):
                if kept != consumed:
                    memmove(base + kept, base + consumed, frame)
                kept += frame
            consumed += frame
    return kept, consumed, damaged


cdef bint _may_hold(
    const uint8_t* frame, Py_ssize_t size, const uint8_t** wanted, size_t* lengths, int count
) noexcept nogil:
    cdef int number
    if frame[5] != KIND_DATA or size < HEAD + BATCH_HEAD:
        return False
    if frame[HEAD + 22] & 7:  # compressed: what it holds is seen when it is decoded
        return True
    for number in range(count):
        if ask_find(frame + HEAD + BATCH_HEAD, size - HEAD - BATCH_HEAD, wanted[number], lengths[number]) != NULL:
            return True
    return False


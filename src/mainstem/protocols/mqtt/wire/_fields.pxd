# cython: language_level=3
"""MQTT's field types in place, for the compiled modules (and the load generator's client side). All of it is inline."""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy


cdef inline int length_size(Py_ssize_t value) noexcept nogil:
    """Bytes of a variable byte integer."""
    return 1 if value < 128 else 2 if value < 16384 else 3 if value < 2097152 else 4


cdef inline uint8_t* put_length(uint8_t* at, Py_ssize_t value) noexcept nogil:
    while value >= 128:
        at[0] = <uint8_t>(value | 128)
        value >>= 7
        at += 1
    at[0] = <uint8_t>value
    return at + 1


cdef inline int get_length(const uint8_t* at, const uint8_t* end, Py_ssize_t* value) noexcept nogil:
    """How many bytes the variable byte integer has; 0 if it is cut off, -1 if it is not one in its shortest form."""
    cdef int size = 0
    cdef Py_ssize_t result = 0
    while at + size < end:
        result |= <Py_ssize_t>(at[size] & 127) << (7 * size)
        size += 1
        if at[size - 1] < 128:
            if size > 1 and at[size - 1] == 0:
                return -1
            value[0] = result
            return size
        if size == 4:
            return -1
    return 0


cdef inline bint is_utf8(const uint8_t* at, Py_ssize_t size, bint nul_allowed) noexcept nogil:
    """UTF-8 without surrogates or overlong forms; a string, unlike a payload, holds no U+0000 either."""
    cdef const uint8_t* end = at + size
    cdef uint64_t word
    cdef int more, n
    cdef uint8_t first, low, high
    while at < end:
        if end - at >= 8:
            memcpy(&word, at, 8)
            if not (word & 0x8080808080808080ULL) and (
                nul_allowed or not ((word - 0x0101010101010101ULL) & ~word & 0x8080808080808080ULL)
            ):
                at += 8
                continue
        first = at[0]
        at += 1
        if first < 0x80:
            if first == 0 and not nul_allowed:
                return False
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            if first == 0xE0:
                low = 0xA0
            elif first == 0xED:
                high = 0x9F
        elif 0xF0 <= first <= 0xF4:
            more = 3
            if first == 0xF0:
                low = 0x90
            elif first == 0xF4:
                high = 0x8F
        else:
            return False
        if end - at < more or at[0] < low or at[0] > high:
            return False
        for n in range(1, more):
            if at[n] & 0xC0 != 0x80:
                return False
        at += more
    return True

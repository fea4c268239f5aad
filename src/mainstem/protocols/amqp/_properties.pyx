# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A content header's properties, in place: whether they are well formed, and what the hot path must know of them."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from mainstem.codec._batch cimport get_u16, get_u32, get_u64

cdef enum:
    NESTING_MAX = 64


cdef const uint8_t* skip_value(const uint8_t* at, const uint8_t* end, int depth) noexcept:
    """Behind the table value at `at`; NULL if it is malformed, of unknown type or nested too deeply."""
    cdef uint8_t kind
    cdef int64_t size
    if at == NULL or at >= end:
        return NULL
    kind = at[0]
    at += 1
    if kind == c"t" or kind == c"b" or kind == c"B":
        size = 1
    elif kind == c"s" or kind == c"u" or kind == c"U":
        size = 2
    elif kind == c"I" or kind == c"i" or kind == c"f":
        size = 4
    elif kind == c"l" or kind == c"L" or kind == c"d" or kind == c"T":
        size = 8
    elif kind == c"D":
        size = 5
    elif kind == c"V":
        size = 0
    elif kind == c"S" or kind == c"x" or kind == c"A" or kind == c"F":
        if end - at < 4:
            return NULL
        size = get_u32(at)
        at += 4
        if size > end - at:
            return NULL
        if kind == c"A" or kind == c"F":
            if depth >= NESTING_MAX:
                return NULL
            return skip_values(at, at + size, kind == c"F", depth + 1)
    else:
        return NULL
    return at + size if size <= end - at else NULL


cdef const uint8_t* skip_values(const uint8_t* at, const uint8_t* end, bint named, int depth) noexcept:
    while at < end:
        if named:
            at = skip_short(at, end)
        at = skip_value(at, end, depth)
        if at == NULL:
            return NULL
    return end


cdef inline bint is_special(const uint8_t* name, int size) noexcept:
    """Headers that change where or when a message goes."""
    return (size == 2 and memcmp(name, b"CC", 2) == 0) or (size == 3 and memcmp(name, b"BCC", 3) == 0) or \
        (size == 7 and memcmp(name, b"x-delay", 7) == 0) or (size > 3 and memcmp(name, b"ms-", 3) == 0)


cdef int look_at(const uint8_t* at, const uint8_t* end, int64_t* time_ms) noexcept:
    """Check a content header's properties and tell what the hot path must know of them."""
    cdef int flags, found = 0, bit
    cdef const uint8_t* after
    if end - at < 2:
        return LOOK_MALFORMED
    flags = get_u16(at)
    at += 2
    if flags & 3:
        return LOOK_MALFORMED
    if flags & 0x8000:
        at = skip_short(at, end)
    if flags & 0x4000:
        at = skip_short(at, end)
    if at == NULL:
        return LOOK_MALFORMED
    if flags & 0x2000:
        if end - at < 4 or get_u32(at) > end - at - 4:
            return LOOK_MALFORMED
        after = at + 4 + get_u32(at)
        at += 4
        while at < after:
            if after - at > at[0] and is_special(at + 1, at[0]):
                found |= LOOK_SLOW
            at = skip_value(skip_short(at, after), after, 0)
            if at == NULL:
                return LOOK_MALFORMED
    if flags & 0x1000:
        if at >= end:
            return LOOK_MALFORMED
        if at[0] == 2:
            found |= LOOK_PERSISTENT
        at += 1
    if flags & 0x0800:
        at += 1
    for bit in range(10, 1, -1):
        if not flags & (1 << bit):
            continue
        if bit == 6:
            if end - at < 8:
                return LOOK_MALFORMED
            if 0 < get_u64(at) < (<uint64_t>1 << 43):
                time_ms[0] = <int64_t>get_u64(at) * 1000
            at += 8
            continue
        if (bit == 9 and end - at > 21 and memcmp(at + 1, b"amq.rabbitmq.reply-to", 21) == 0) or bit == 8 or bit == 4:
            found |= LOOK_SLOW
        at = skip_short(at, end)
        if at == NULL:
            return LOOK_MALFORMED
    return found if at == end else LOOK_MALFORMED


def check_properties(bytes properties):
    """(well formed, persistent, needs a look, time in ms or 0): for tests and for the slow path."""
    cdef int64_t time_ms = 0
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(properties)
    cdef int found = look_at(at, at + PyBytes_GET_SIZE(properties), &time_ms)
    if found == LOOK_MALFORMED:
        return False, False, False, 0
    return True, bool(found & LOOK_PERSISTENT), bool(found & LOOK_SLOW), time_ms

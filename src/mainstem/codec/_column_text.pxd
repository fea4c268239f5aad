# cython: language_level=3
"""Text inside stored records: whether it is UTF-8, and where MQTT and AMQP keep a record's content type."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from mainstem.codec._batch cimport get_u16


cdef inline bint is_utf8(const uint8_t* at, int64_t size) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef uint32_t point
    cdef int more, i
    while at < end:
        if at[0] < 0x80:
            at += 1
            continue
        if 0xC2 <= at[0] <= 0xDF:
            more, point = 1, at[0] & 0x1F
        elif 0xE0 <= at[0] <= 0xEF:
            more, point = 2, at[0] & 0x0F
        elif 0xF0 <= at[0] <= 0xF4:
            more, point = 3, at[0] & 0x07
        else:
            return False
        if end - at <= more:
            return False
        for i in range(1, more + 1):
            if at[i] & 0xC0 != 0x80:
                return False
            point = (point << 6) | (at[i] & 0x3F)
        if more == 2 and (point < 0x800 or 0xD800 <= point <= 0xDFFF):
            return False
        if more == 3 and not 0x10000 <= point <= 0x10FFFF:
            return False
        at += more + 1
    return True


cdef inline const uint8_t* mqtt_content_type(const uint8_t* at, const uint8_t* end, Py_ssize_t* found) noexcept nogil:
    """Property 3 among the properties of a PUBLISH, or NULL."""
    cdef uint8_t name
    cdef int64_t size
    while at < end:
        name = at[0]
        at += 1
        if name == 0x01:  # payload format
            at += 1
        elif name == 0x23:  # topic alias
            at += 2
        elif name == 0x02:  # message expiry
            at += 4
        elif name == 0x0B:  # subscription identifier
            while at < end and at[0] >= 0x80:
                at += 1
            at += 1
        elif name == 0x03 or name == 0x08 or name == 0x09 or name == 0x26:
            if end - at < 2:
                return NULL
            size = get_u16(at)
            at += 2
            if size > end - at:
                return NULL
            if name == 0x03:
                found[0] = size
                return at
            at += size
            if name == 0x26:  # a user property is two strings
                if end - at < 2:
                    return NULL
                at += 2 + get_u16(at)
        else:
            return NULL
    return NULL


cdef inline const uint8_t* amqp_content_type(const uint8_t* at, const uint8_t* end, Py_ssize_t* found) noexcept nogil:
    """The first property of a content header, if its flag is set, or NULL. (No standard property needs a second flag word.)"""
    if end - at < 3 or not at[0] & 0x80 or at[1] & 1 or end - at < 3 + at[2]:
        return NULL
    found[0] = at[2]
    return at + 3

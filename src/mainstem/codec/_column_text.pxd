# cython: language_level=3
"""Text and times inside stored records, as columns show them, and where MQTT and AMQP keep a record's content type."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t

from mainstem.codec._batch cimport get_u16
from mainstem.codec._runs cimport Binary, put_value


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


cdef inline int put_text(Binary* column, const uint8_t* data, Py_ssize_t size) except -1 nogil:
    """Arrow strings are UTF-8; what is not shows replacement characters, as it would to any reader of text."""
    if size < 0 or is_utf8(data, size):
        return put_value(column, <const char*>data, size)
    return put_replaced(column, data, size)


cdef inline int put_replaced(Binary* column, const uint8_t* data, Py_ssize_t size) except -1 with gil:
    """Apart from put_text, because a function that uses Python's objects takes the interpreter's lock with every call."""
    text = PyBytes_FromStringAndSize(<const char*>data, size).decode("utf-8", "replace").encode()
    return put_value(column, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef inline int64_t shown_ms(int64_t ms) noexcept nogil:
    """Within the years 1 to 9999: what every reader of timestamps can show."""
    cdef int64_t least = <int64_t>-62135596800 * 1000, most = <int64_t>253402300800 * 1000 - 1
    return least if ms < least else most if ms > most else ms


cdef inline bint in_years(int64_t ms) noexcept nogil:
    return shown_ms(ms) == ms

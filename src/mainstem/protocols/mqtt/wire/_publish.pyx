# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""One PUBLISH where it lies: its fields and properties, checked. Its oracle is `tests/oracles/mqtt_wire.py`."""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memchr, memcmp

from mainstem.codec._batch cimport get_u16
from mainstem.protocols.mqtt.wire._codes cimport MALFORMED, PROTOCOL_ERROR, QUOTA_EXCEEDED
from mainstem.protocols.mqtt.wire._fields cimport get_length, is_utf8

from mainstem.protocols.mqtt.wire.reasons import Violation


cdef int read_publish(int version, object limits, int flags, const uint8_t* at, const uint8_t* end,
                      Fields* fields) except -1:
    """The fields of the PUBLISH between `at`, behind its length, and `end`. Topic and alias are not looked at."""
    cdef Py_ssize_t size = 0
    cdef int digits
    fields.qos, fields.retain, fields.packet_id = (flags >> 1) & 3, flags & 1, 0
    fields.alias, fields.alias_at, fields.is_text, fields.is_special = 0, -1, 0, 0
    fields.properties, fields.properties_size = NULL, 0
    if fields.qos == 3 or (flags & 8 and fields.qos == 0):
        raise Violation(MALFORMED, f"PUBLISH with flags {flags:#06b}")
    if end - at < 2:
        raise Violation(MALFORMED, "PUBLISH ends inside its topic")
    fields.topic_size = get_u16(at)
    fields.topic = at + 2
    at += 2 + fields.topic_size
    if at > end or (fields.qos and end - at < 2):
        raise Violation(MALFORMED, "PUBLISH ends inside its topic")
    if fields.qos:
        fields.packet_id = get_u16(at)
        at += 2
        if fields.packet_id == 0:
            raise Violation(MALFORMED, "packet identifier 0")
    if version == 5:
        digits = get_length(at, end, &size)
        if digits <= 0 or size > end - at - digits:
            raise Violation(MALFORMED, "the property list does not fit its packet")
        at += digits
        if size:
            fields.properties, fields.properties_size = at, size
            _read_properties(limits, at, at + size, fields)
            at += size
    fields.payload, fields.payload_size = at, end - at
    return 0


cdef int _read_properties(object limits, const uint8_t* at, const uint8_t* end, Fields* fields) except -1:
    """Check a publish's properties where they stand; they are stored as they are."""
    cdef const uint8_t* start = at
    cdef uint64_t seen = 0
    cdef int identifier, pairs = 0, user_properties_max = limits.user_properties_max
    cdef Py_ssize_t size
    while at < end:
        identifier = at[0]
        if identifier != 38 and identifier < 64:
            if seen >> identifier & 1:
                raise Violation(PROTOCOL_ERROR, f"property {identifier} stands twice")
            seen |= <uint64_t>1 << identifier
        at += 1
        if identifier == 1:
            if end - at < 1:
                break
            if at[0] > 1:
                raise Violation(PROTOCOL_ERROR, "Payload Format Indicator is neither 0 nor 1")
            fields.is_text = at[0]
            at += 1
        elif identifier == 2:
            if end - at < 4:
                break
            at += 4
        elif identifier == 35:
            if end - at < 2:
                break
            fields.alias_at = at - 1 - start
            fields.alias = get_u16(at)
            at += 2
        elif identifier == 3 or identifier == 8 or identifier == 9 or identifier == 38:
            if end - at < 2:
                break
            size = get_u16(at)
            at += 2
            if size > end - at:
                raise Violation(MALFORMED, "a property does not fit its list")
            if identifier != 9 and not is_utf8(at, size, False):
                raise Violation(MALFORMED, f"property {identifier} is not UTF-8 without U+0000")
            if identifier == 8 and (size == 0 or memchr(at, 0x23, size) != NULL or memchr(at, 0x2B, size) != NULL):
                raise Violation(PROTOCOL_ERROR, "Response Topic is empty or holds wildcards")
            if identifier == 38:
                pairs += 1
                if size > 3 and memcmp(at, <const char*>"ms-", 3) == 0:
                    fields.is_special = 1
                at += size
                if end - at < 2:
                    break
                size = get_u16(at)
                at += 2
                if size > end - at or not is_utf8(at, size, False):
                    raise Violation(MALFORMED, "a user property's value is not UTF-8 inside its list")
            at += size
        elif identifier == 11:
            raise Violation(PROTOCOL_ERROR, "a client's PUBLISH with a Subscription Identifier")
        else:
            raise Violation(MALFORMED, f"property {identifier} in PUBLISH")
    else:
        if pairs > user_properties_max:
            raise Violation(QUOTA_EXCEEDED, f"{pairs} user properties, limit {user_properties_max}")
        return 0
    raise Violation(MALFORMED, "a property does not fit its list")

"""MQTT 5 properties: what each is, where it may stand, and its bytes.

    property list := length (variable byte integer) · property*
    property      := identifier (1 byte: all known ones are below 128) · value by its type

A list is decoded into a dict by identifier; what may repeat (user properties, subscription identifiers) is a list
there. The hot path checks the properties of PUBLISH in place and keeps their bytes; everything else comes through here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from mainstem.protocols.mqtt.wire.reasons import Reason, Violation


class Property(IntEnum):
    PAYLOAD_FORMAT = 1
    MESSAGE_EXPIRY = 2
    CONTENT_TYPE = 3
    RESPONSE_TOPIC = 8
    CORRELATION_DATA = 9
    SUBSCRIPTION_ID = 11
    SESSION_EXPIRY = 17
    ASSIGNED_CLIENT_ID = 18
    SERVER_KEEP_ALIVE = 19
    AUTHENTICATION_METHOD = 21
    AUTHENTICATION_DATA = 22
    REQUEST_PROBLEM_INFORMATION = 23
    WILL_DELAY = 24
    REQUEST_RESPONSE_INFORMATION = 25
    RESPONSE_INFORMATION = 26
    SERVER_REFERENCE = 28
    REASON_STRING = 31
    RECEIVE_MAXIMUM = 33
    TOPIC_ALIAS_MAXIMUM = 34
    TOPIC_ALIAS = 35
    MAXIMUM_QOS = 36
    RETAIN_AVAILABLE = 37
    USER_PROPERTY = 38
    MAXIMUM_PACKET_SIZE = 39
    WILDCARD_AVAILABLE = 40
    SUBSCRIPTION_ID_AVAILABLE = 41
    SHARED_AVAILABLE = 42


Properties = dict[int, Any]

BYTE, TWO, FOUR, VARINT, TEXT, BINARY, PAIR = range(7)

TYPES: dict[int, int] = {
    Property.PAYLOAD_FORMAT: BYTE,
    Property.MESSAGE_EXPIRY: FOUR,
    Property.CONTENT_TYPE: TEXT,
    Property.RESPONSE_TOPIC: TEXT,
    Property.CORRELATION_DATA: BINARY,
    Property.SUBSCRIPTION_ID: VARINT,
    Property.SESSION_EXPIRY: FOUR,
    Property.ASSIGNED_CLIENT_ID: TEXT,
    Property.SERVER_KEEP_ALIVE: TWO,
    Property.AUTHENTICATION_METHOD: TEXT,
    Property.AUTHENTICATION_DATA: BINARY,
    Property.REQUEST_PROBLEM_INFORMATION: BYTE,
    Property.WILL_DELAY: FOUR,
    Property.REQUEST_RESPONSE_INFORMATION: BYTE,
    Property.RESPONSE_INFORMATION: TEXT,
    Property.SERVER_REFERENCE: TEXT,
    Property.REASON_STRING: TEXT,
    Property.RECEIVE_MAXIMUM: TWO,
    Property.TOPIC_ALIAS_MAXIMUM: TWO,
    Property.TOPIC_ALIAS: TWO,
    Property.MAXIMUM_QOS: BYTE,
    Property.RETAIN_AVAILABLE: BYTE,
    Property.USER_PROPERTY: PAIR,
    Property.MAXIMUM_PACKET_SIZE: FOUR,
    Property.WILDCARD_AVAILABLE: BYTE,
    Property.SUBSCRIPTION_ID_AVAILABLE: BYTE,
    Property.SHARED_AVAILABLE: BYTE,
}

REPEATED = frozenset({Property.USER_PROPERTY, Property.SUBSCRIPTION_ID})
FLAGS = frozenset(  # one byte, 0 or 1
    {Property.PAYLOAD_FORMAT, Property.REQUEST_PROBLEM_INFORMATION, Property.REQUEST_RESPONSE_INFORMATION}
)
NOT_ZERO = frozenset({Property.RECEIVE_MAXIMUM, Property.MAXIMUM_PACKET_SIZE, Property.SUBSCRIPTION_ID})

MESSAGE = frozenset(
    {
        Property.PAYLOAD_FORMAT,
        Property.MESSAGE_EXPIRY,
        Property.CONTENT_TYPE,
        Property.RESPONSE_TOPIC,
        Property.CORRELATION_DATA,
        Property.USER_PROPERTY,
    }
)
IN_PUBLISH = MESSAGE | {Property.TOPIC_ALIAS, Property.SUBSCRIPTION_ID}
IN_WILL = MESSAGE | {Property.WILL_DELAY}
IN_CONNECT = frozenset(
    {
        Property.SESSION_EXPIRY,
        Property.RECEIVE_MAXIMUM,
        Property.MAXIMUM_PACKET_SIZE,
        Property.TOPIC_ALIAS_MAXIMUM,
        Property.REQUEST_RESPONSE_INFORMATION,
        Property.REQUEST_PROBLEM_INFORMATION,
        Property.USER_PROPERTY,
        Property.AUTHENTICATION_METHOD,
        Property.AUTHENTICATION_DATA,
    }
)
IN_SUBSCRIBE = frozenset({Property.SUBSCRIPTION_ID, Property.USER_PROPERTY})
IN_UNSUBSCRIBE = frozenset({Property.USER_PROPERTY})
IN_ACK = frozenset({Property.REASON_STRING, Property.USER_PROPERTY})
IN_DISCONNECT = frozenset(
    {Property.SESSION_EXPIRY, Property.REASON_STRING, Property.USER_PROPERTY, Property.SERVER_REFERENCE}
)
IN_AUTH = frozenset(
    {
        Property.AUTHENTICATION_METHOD,
        Property.AUTHENTICATION_DATA,
        Property.REASON_STRING,
        Property.USER_PROPERTY,
    }
)


class Reader:
    """Reads MQTT's field types from the front of a packet body; running out of bytes is malformed."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.at = at
        self.end = len(data) if end is None else end

    def take(self, size: int) -> bytes:
        start = self.at
        if start + size > self.end:
            raise Violation(Reason.MALFORMED_PACKET, "packet ends inside a field")
        self.at = start + size
        return self.data[start : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def two(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def four(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def binary(self) -> bytes:
        return self.take(self.two())

    def text(self) -> bytes:
        """UTF-8 that was checked, still as bytes: topics and names are bytes everywhere below."""
        value = self.binary()
        check_text(value)
        return value

    def varint(self) -> int:
        value = shift = 0
        while True:
            digit = self.byte()
            value |= (digit & 0x7F) << shift
            if not digit & 0x80:
                if digit == 0 and shift:
                    raise Violation(Reason.MALFORMED_PACKET, "variable byte integer is not in its shortest form")
                return value
            shift += 7
            if shift > 21:
                raise Violation(Reason.MALFORMED_PACKET, "variable byte integer is longer than four bytes")

    def done(self) -> bool:
        return self.at >= self.end


def check_text(value: bytes) -> None:
    """U+0000 and surrogates are malformed; so is what is not UTF-8. A byte order mark is data."""
    if b"\0" in value:
        raise Violation(Reason.MALFORMED_PACKET, "string holds U+0000")
    if not value.isascii():
        try:
            value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Violation(Reason.MALFORMED_PACKET, f"string is not UTF-8: {error.reason}") from None


def decode_properties(
    reader: Reader,
    allowed: frozenset[Property],
    out_of_place: Reason = Reason.PROTOCOL_ERROR,
    *,
    user_properties_max: int = 1000,
) -> Properties:
    """Read one property list. A list that is wrong names the property, so that a client's author can find it."""
    end = reader.varint() + reader.at
    if end > reader.end:
        raise Violation(Reason.MALFORMED_PACKET, "property list is longer than its packet")
    found: Properties = {}
    inner = Reader(reader.data, reader.at, end)
    while not inner.done():
        identifier = inner.byte()
        kind = TYPES.get(identifier)
        if kind is None:
            raise Violation(Reason.MALFORMED_PACKET, f"property {identifier} does not exist")
        value = _read(inner, kind)
        if identifier not in allowed:
            raise Violation(out_of_place, f"property {Property(identifier).name} has no place here")
        _check_range(identifier, value)
        if identifier in REPEATED:
            values = found.setdefault(identifier, [])
            values.append(value)
            if len(values) > user_properties_max:
                raise Violation(Reason.QUOTA_EXCEEDED, f"more than {user_properties_max} user properties")
        elif identifier in found:
            raise Violation(Reason.PROTOCOL_ERROR, f"property {Property(identifier).name} stands twice")
        else:
            found[identifier] = value
    reader.at = end
    return found


def _read(reader: Reader, kind: int) -> Any:
    if kind == BYTE:
        return reader.byte()
    if kind == TWO:
        return reader.two()
    if kind == FOUR:
        return reader.four()
    if kind == VARINT:
        return reader.varint()
    if kind == TEXT:
        return reader.text()
    if kind == BINARY:
        return reader.binary()
    return reader.text(), reader.text()


def _check_range(identifier: int, value: Any) -> None:
    if identifier in FLAGS and value > 1:
        raise Violation(Reason.PROTOCOL_ERROR, f"property {Property(identifier).name} is {value}, not 0 or 1")
    if identifier in NOT_ZERO and value == 0:
        raise Violation(Reason.PROTOCOL_ERROR, f"property {Property(identifier).name} is 0")


def encode_varint(value: int) -> bytes:
    out = bytearray()
    while True:
        digit = value & 0x7F
        value >>= 7
        if not value:
            out.append(digit)
            return bytes(out)
        out.append(digit | 0x80)


def encode_text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


def encode_property(identifier: int, value: Any) -> bytes:
    """One property, or each of a repeated one."""
    if identifier in REPEATED and isinstance(value, list):
        return b"".join(encode_property(identifier, one) for one in value)
    head = bytes([identifier])
    kind = TYPES[identifier]
    if kind == BYTE:
        return head + bytes([value])
    if kind == TWO:
        return head + int(value).to_bytes(2, "big")
    if kind == FOUR:
        return head + int(value).to_bytes(4, "big")
    if kind == VARINT:
        return head + encode_varint(value)
    if kind == PAIR:
        return head + encode_text(value[0]) + encode_text(value[1])
    return head + encode_text(value)


def encode_bare(properties: Mapping[int, Any]) -> bytes:
    """The properties one after the other, without the length in front: the form that `ms-mqtt` stores."""
    return b"".join(encode_property(identifier, value) for identifier, value in properties.items())


def encode_properties(properties: Mapping[int, Any]) -> bytes:
    body = encode_bare(properties)
    return encode_varint(len(body)) + body

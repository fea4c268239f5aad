"""Every MQTT packet except the hot ones (PUBLISH and its acks are handled in place by `wire`), as events and as bytes.

    packet := type (4 bits) · flags (4 bits) · remaining length (variable byte integer) · body

`decode` turns the body of one packet from a client into an event; the functions below it make what a server sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from mainstem.broker.sessions.wills import Will
from mainstem.codec.large_record import LargeRecord
from mainstem.protocols.mqtt.limits import Limits
from mainstem.protocols.mqtt.wire.properties import (
    IN_ACK,
    IN_AUTH,
    IN_CONNECT,
    IN_DISCONNECT,
    IN_SUBSCRIBE,
    IN_UNSUBSCRIBE,
    IN_WILL,
    Properties,
    Property,
    Reader,
    decode_properties,
    encode_bare,
    encode_properties,
    encode_varint,
)
from mainstem.protocols.mqtt.wire.reasons import (
    RETURN_CODES,
    BadConnect,
    Reason,
    UnsupportedVersion,
    Violation,
    refusal_words,
)

V31, V311, V5 = 3, 4, 5


class Packet(IntEnum):
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


@dataclass(frozen=True, slots=True)
class Connect:
    version: int
    client_id: bytes
    clean_start: bool
    keep_alive_seconds: int
    username: bytes | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Publish:
    """Only a publish that needs more than the hot path: a `$` topic, or `ms-` user properties."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    packet_id: int
    properties: bytes


@dataclass(frozen=True, slots=True)
class LargePublish:
    """A publish whose record is written by a thread; whether it may be published is decided."""

    record: LargeRecord
    topic: bytes
    qos: int
    packet_id: int


@dataclass(frozen=True, slots=True)
class Filter:
    topic: bytes
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True)
class Subscribe:
    packet_id: int
    filters: tuple[Filter, ...]
    subscription_id: int = 0
    user_properties: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    packet_id: int
    topics: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Pingreq:
    pass


@dataclass(frozen=True, slots=True)
class Pause:
    """No packet: it published to so many new topics that what else it sent is its next turn's."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    reason: int = Reason.SUCCESS
    session_expiry_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Auth:
    reason: int
    method: bytes | None = None
    data: bytes = b""


Event = Connect | Publish | LargePublish | Subscribe | Unsubscribe | Pingreq | Pause | Disconnect | Auth

FIXED_FLAGS = {  # every type but PUBLISH has its flag bits prescribed
    Packet.CONNECT: 0,
    Packet.SUBSCRIBE: 2,
    Packet.UNSUBSCRIBE: 2,
    Packet.PINGREQ: 0,
    Packet.DISCONNECT: 0,
    Packet.AUTH: 0,
}


DUP = 8
SERVERS_OWN = frozenset((Packet.SUBACK, Packet.UNSUBACK, Packet.PINGRESP))


def decode(kind: int, flags: int, body: bytes, version: int, limits: Limits) -> Event:
    """One packet from a client. Raises Violation; what it returns is valid by itself."""
    expected = FIXED_FLAGS.get(kind)  # type: ignore[call-overload]
    if expected is None or (kind == Packet.AUTH and version != V5):
        reason = Reason.MALFORMED_PACKET if flags and kind in SERVERS_OWN else Reason.PROTOCOL_ERROR
        raise Violation(reason, f"a client does not send packets of type {kind}")
    if version == V31 and expected == 2:
        flags &= ~DUP  # which 3.1 has for all that is answered
    if flags != expected and kind != Packet.CONNECT:
        raise Violation(Reason.MALFORMED_PACKET, f"flags of {Packet(kind).name} are {flags:#06b}, not {expected:#06b}")
    reader = Reader(body)
    event: Event
    if kind == Packet.CONNECT:
        return _whole_connect(reader, flags, limits)
    if kind == Packet.SUBSCRIBE:
        event = _subscribe(reader, version, limits)
    elif kind == Packet.UNSUBSCRIBE:
        event = _unsubscribe(reader, version, limits)
    elif kind == Packet.PINGREQ:
        event = Pingreq()
    elif kind == Packet.DISCONNECT:
        event = _disconnect(reader, version)
    else:
        event = _auth(reader)
    _check_done(reader, kind)
    return event


def _check_done(reader: Reader, kind: int) -> None:
    if not reader.done():
        raise Violation(Reason.MALFORMED_PACKET, f"{Packet(kind).name} goes on after its last field")


ACK_REASONS = {
    Packet.PUBACK: frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)),
    Packet.PUBREC: frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)),
    Packet.PUBREL: frozenset((0x00, 0x92)),
    Packet.PUBCOMP: frozenset((0x00, 0x92)),
}


def check_ack(kind: int, body: bytes, limits: Limits) -> None:
    """An acknowledgement of MQTT 5 that says more than its packet identifier; the hot path asks only for those."""
    reader = Reader(body, 2)
    reason = reader.byte()
    if reason not in ACK_REASONS[Packet(kind)]:
        raise Violation(Reason.PROTOCOL_ERROR, f"{Packet(kind).name} with reason {reason:#04x}")
    if not reader.done():
        decode_properties(reader, IN_ACK, user_properties_max=limits.user_properties_max)
    _check_done(reader, kind)


def _whole_connect(reader: Reader, flags: int, limits: Limits) -> Connect:
    """What is wrong behind the version can be told in its words."""
    version = _version(reader)
    if flags and version != V31:  # which says that they are not used, not that they are 0
        raise Violation(Reason.MALFORMED_PACKET, f"flags of CONNECT are {flags:#06b}, not 0b0000")
    try:
        connect = _connect(reader, version, limits)
        _check_done(reader, Packet.CONNECT)
    except Violation as violation:
        raise BadConnect(version, violation) from None
    return connect


def _version(reader: Reader) -> int:
    name, level = reader.binary(), reader.byte()
    version = level & 0x7F  # the high bit marks a bridge of mosquitto's; it is an ordinary client to us
    if (name, version) not in ((b"MQIsdp", V31), (b"MQTT", V311), (b"MQTT", V5)):
        raise UnsupportedVersion(name, version)
    return version


def _connect(reader: Reader, version: int, limits: Limits) -> Connect:
    flags = reader.byte()
    will_flag, will_qos, will_retain = bool(flags & 4), flags >> 3 & 3, bool(flags & 32)
    if flags & 1 and version != V31:
        raise Violation(Reason.MALFORMED_PACKET, "the reserved connect flag is set")
    if will_qos == 3 or (not will_flag and (will_qos or will_retain)):
        raise Violation(Reason.MALFORMED_PACKET, "the will flags contradict each other")
    if version != V5 and flags & 0x40 and not flags & 0x80:
        raise Violation(Reason.MALFORMED_PACKET, "a password without a user name")
    keep_alive = reader.two()
    properties: Properties = {}
    if version == V5:
        properties = decode_properties(reader, IN_CONNECT, user_properties_max=limits.user_properties_max)
        if Property.AUTHENTICATION_DATA in properties and Property.AUTHENTICATION_METHOD not in properties:
            raise Violation(Reason.PROTOCOL_ERROR, "authentication data without a method")
    client_id = reader.text()
    will = _will(reader, version, will_qos, will_retain, limits) if will_flag else None
    username = reader.text() if flags & 0x80 else None
    password = reader.binary() if flags & 0x40 else None
    return Connect(version, client_id, bool(flags & 2), keep_alive, username, password, will, properties)


def _will(reader: Reader, version: int, qos: int, retain: bool, limits: Limits) -> Will:
    properties: Properties = {}
    if version == V5:
        properties = decode_properties(reader, IN_WILL, user_properties_max=limits.user_properties_max)
    response = properties.get(Property.RESPONSE_TOPIC)
    if response is not None and (not response or b"#" in response or b"+" in response):
        raise Violation(Reason.PROTOCOL_ERROR, "the will's Response Topic is empty or holds wildcards")
    delay = properties.pop(Property.WILL_DELAY, 0)
    return Will(reader.text(), reader.binary(), qos, retain, delay, encode_bare(properties))


def _packet_id(reader: Reader) -> int:
    packet_id = reader.two()
    if packet_id == 0:
        raise Violation(Reason.MALFORMED_PACKET, "packet identifier 0")
    return packet_id


def _filter(reader: Reader) -> bytes:
    topic_filter = reader.text()
    if not topic_filter:
        raise Violation(Reason.MALFORMED_PACKET, "an empty topic filter [MQTT-4.7.3-1]")
    return topic_filter


def _subscribe(reader: Reader, version: int, limits: Limits) -> Subscribe:
    packet_id = _packet_id(reader)
    properties: Properties = {}
    if version == V5:
        properties = decode_properties(
            reader, IN_SUBSCRIBE, Reason.MALFORMED_PACKET, user_properties_max=limits.user_properties_max
        )
    identifiers = properties.get(Property.SUBSCRIPTION_ID, [0])
    if len(identifiers) > 1:
        raise Violation(Reason.PROTOCOL_ERROR, "more than one subscription identifier")
    filters = []
    while not reader.done():
        topic, options = _filter(reader), reader.byte()
        qos, handling = options & 3, options >> 4 & 3
        if options & (0xC0 if version == V5 else 0xFC):
            raise Violation(Reason.MALFORMED_PACKET, f"subscription options {options:#04x}")
        if qos == 3 or handling == 3:
            raise Violation(Reason.PROTOCOL_ERROR, f"subscription options {options:#04x}")
        no_local = bool(options & 4)
        if no_local and topic.startswith(b"$share/"):
            raise Violation(Reason.PROTOCOL_ERROR, "No Local on a shared subscription")
        filters.append(Filter(topic, qos, no_local, bool(options & 8), handling))
        if len(filters) > limits.filters_per_packet_max:
            raise Violation(Reason.QUOTA_EXCEEDED, f"more than {limits.filters_per_packet_max} filters in one packet")
    if not filters:
        raise Violation(Reason.PROTOCOL_ERROR, "SUBSCRIBE without a topic filter")
    return Subscribe(packet_id, tuple(filters), identifiers[0], tuple(properties.get(Property.USER_PROPERTY, ())))


def _unsubscribe(reader: Reader, version: int, limits: Limits) -> Unsubscribe:
    packet_id = _packet_id(reader)
    if version == V5:
        decode_properties(
            reader, IN_UNSUBSCRIBE, Reason.MALFORMED_PACKET, user_properties_max=limits.user_properties_max
        )
    topics = []
    while not reader.done():
        topics.append(_filter(reader))
        if len(topics) > limits.filters_per_packet_max:
            raise Violation(Reason.QUOTA_EXCEEDED, f"more than {limits.filters_per_packet_max} filters in one packet")
    if not topics:
        raise Violation(Reason.PROTOCOL_ERROR, "UNSUBSCRIBE without a topic filter")
    return Unsubscribe(packet_id, tuple(topics))


def _disconnect(reader: Reader, version: int) -> Disconnect:
    if version != V5 or reader.done():
        return Disconnect()
    reason = reader.byte()
    properties = decode_properties(reader, IN_DISCONNECT) if not reader.done() else {}
    return Disconnect(reason, properties.get(Property.SESSION_EXPIRY))


def _auth(reader: Reader) -> Auth:
    if reader.done():
        return Auth(Reason.SUCCESS)
    reason = reader.byte()
    properties = decode_properties(reader, IN_AUTH) if not reader.done() else {}
    return Auth(
        reason, properties.get(Property.AUTHENTICATION_METHOD), properties.get(Property.AUTHENTICATION_DATA, b"")
    )


# What a server sends.

PINGRESP = b"\xd0\x00"


def encode_packet(kind: int, flags: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes([kind << 4 | flags]) + encode_varint(len(body)) + body


def encode_connack(
    version: int, session_present: bool, reason: int, properties: Mapping[int, Any] | None = None
) -> bytes:
    if version != V5:
        code = RETURN_CODES.get(Reason(reason), 3)
        told = session_present and code == 0 and version != V31  # 3.1 has no such flag
        return bytes([0x20, 2, told, code])
    body = bytes([session_present and reason == 0, reason]) + encode_properties(properties or {})
    return encode_packet(Packet.CONNACK, 0, body)


def encode_suback(
    version: int, packet_id: int, reasons: list[int], properties: Mapping[int, Any] | None = None
) -> bytes:
    head = packet_id.to_bytes(2, "big")
    if version != V5:
        codes = bytes(0x80 if reason >= 0x80 else reason for reason in reasons)
        return encode_packet(Packet.SUBACK, 0, head, codes)
    return encode_packet(Packet.SUBACK, 0, head, encode_properties(properties or {}), bytes(reasons))


def encode_unsuback(version: int, packet_id: int, reasons: list[int]) -> bytes:
    head = packet_id.to_bytes(2, "big")
    if version != V5:
        return encode_packet(Packet.UNSUBACK, 0, head)
    return encode_packet(Packet.UNSUBACK, 0, head, b"\0", bytes(reasons))


def encode_auth(reason: int, properties: Mapping[int, Any]) -> bytes:
    return encode_packet(Packet.AUTH, 0, bytes([reason]), encode_properties(properties))


def encode_disconnect(reason: int, properties: Mapping[int, Any] | None = None) -> bytes:
    """MQTT 5 only: earlier versions just close."""
    return encode_packet(Packet.DISCONNECT, 0, bytes([reason]), encode_properties(properties or {}))


def encode_ack(kind: int, packet_id: int, reason: int = 0, properties: Mapping[int, Any] | None = None) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP; a reason of 0 is left out."""
    flags = 2 if kind == Packet.PUBREL else 0
    head = packet_id.to_bytes(2, "big")
    if reason == 0 and not properties:
        return encode_packet(kind, flags, head)
    if not properties:
        return encode_packet(kind, flags, head, bytes([reason]))
    return encode_packet(kind, flags, head, bytes([reason]), encode_properties(properties))


def encode_refusal(kind: int, packet_id: int, reason: int, bytes_max: int) -> bytes:
    """PUBACK or PUBREC of a publish that was not taken, with its reason in words where the client takes so much."""
    packet = encode_ack(kind, packet_id, reason, {Property.REASON_STRING: refusal_words(reason).encode()})
    return packet if len(packet) <= bytes_max else encode_ack(kind, packet_id, reason)

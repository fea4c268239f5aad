"""PUBACK, PUBREC, PUBREL and PUBCOMP of MQTT 5: their reasons and properties, cut, doubled, unknown or out of place."""

import pytest

from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import Property, encode_properties, encode_text
from tests.protocol.mqtt.raw import Raw, connect_packet, publish_packet, subscribe_packet, unique

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82
KINDS = {"PUBACK": (4, 0), "PUBREC": (5, 0), "PUBREL": (6, 2), "PUBCOMP": (7, 0)}
PINGREQ, PINGRESP = b"\xc0\0", b"\xd0\0"
TEXT = encode_text(b"why")
CASES = {
    "an unknown reason": (b"\xff", PROTOCOL_ERROR),
    "a reason of CONNACK": (b"\x8a\0", PROTOCOL_ERROR),
    "a forbidden property": (b"\0\x05\x11\0\0\0\1", PROTOCOL_ERROR),
    "an unknown property": (b"\0\x02\x7e\0", MALFORMED),
    "a reason string twice": (b"\0" + bytes([12]) + (b"\x1f" + TEXT) * 2, PROTOCOL_ERROR),
    "a reason string with U+0000": (b"\0\x06\x1f\0\3a\0b", MALFORMED),
    "a property list that is cut": (b"\0\x06\x1f\0\5a", MALFORMED),
    "a property list without its property": (b"\0\x01", MALFORMED),
    "bytes behind the property list": (b"\0\0\0", MALFORMED),
    "a property list of no length": (b"\0\x80", MALFORMED),
}


def ack(kind: str, rest: bytes) -> bytes:
    number, flags = KINDS[kind]
    return encode_packet(number, flags, b"\0\1", rest)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_specification_forbids_ends_the_connection(port: int, kind: str, name: str) -> None:
    rest, reason = CASES[name]
    with Raw.connected(port, version=5) as client:
        client.send(ack(kind, rest))
        first, body = client.packet()
        assert (first, body[0]) == (0xE0, reason)


@pytest.mark.parametrize(
    "rest", [b"", b"\0", b"\0\0", b"\x92\0", b"\0" + encode_properties({31: b"fine", 38: [(b"a", b"b")]})]
)
def test_what_it_allows_does_not(port: int, rest: bytes) -> None:
    with Raw.connected(port, version=5) as client:
        client.send(ack("PUBCOMP", rest) + PINGREQ)
        client.expect(PINGRESP)


def test_a_connect_that_is_wrong_is_told_why_in_mqtt_5(port: int) -> None:
    with Raw(port, version=5) as client:
        client.send(encode_packet(1, 0, encode_text(b"MQTT"), b"\5\2\0\x3c", b"\3\x21\0\0", encode_text(b"x")))
        first, body = client.packet()
        assert (first, body[:2]) == (0x20, bytes([0, PROTOCOL_ERROR]))


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("qos", "kind"), [(1, "PUBREC"), (1, "PUBCOMP"), (2, "PUBACK"), (2, "PUBCOMP")])
def test_an_acknowledgement_of_another_kind_than_the_publish_waits_for(
    port: int, version: int, qos: int, kind: str
) -> None:
    topic = unique("kind")
    with Raw.connected(port, version=version) as client, Raw.connected(port) as publisher:
        client.send(subscribe_packet((topic, qos), version=version))
        client.packet()
        publisher.send(publish_packet(topic, b"x", qos=qos))
        packet_id = client.message(ack=False).packet_id
        number, flags = KINDS[kind]
        client.send(encode_packet(number, flags, packet_id.to_bytes(2, "big")))
        if version == 5:
            first, body = client.packet()
            assert (first, body[0]) == (0xE0, PROTOCOL_ERROR)
        assert client.socket.recv(1) == b""


def test_a_client_that_takes_no_connack_is_cut_off_without_one(port: int) -> None:
    with Raw(port, version=5) as client:
        client.send(connect_packet(unique("tiny"), version=5, properties={Property.MAXIMUM_PACKET_SIZE: 4}))
        assert client.socket.recv(100) == b""

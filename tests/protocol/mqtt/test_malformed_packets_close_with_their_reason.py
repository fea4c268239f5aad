import pytest

from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import encode_text
from tests.protocol.mqtt.raw import Raw, publish_packet, unique

MALFORMED, PROTOCOL_ERROR, TOPIC_INVALID, TOO_LARGE, ALIAS_INVALID = 0x81, 0x82, 0x90, 0x95, 0x94
TOPIC = encode_text(b"t")

CASES = {
    "an unknown packet type": (b"\x00\x00", PROTOCOL_ERROR),
    "a packet only a server sends": (b"\xd0\x00", PROTOCOL_ERROR),
    "a remaining length of five bytes": (b"\x30\x80\x80\x80\x80\x01", MALFORMED),
    "a remaining length that is not in its shortest form": (b"\xc0\x80\x00", MALFORMED),
    "PINGREQ with flags": (b"\xc1\x00", MALFORMED),
    "SUBSCRIBE without its flags": (b"\x80\x06\x00\x01\x00\x00\x01t", MALFORMED),
    "SUBSCRIBE without filters": (encode_packet(8, 2, b"\0\1\0"), PROTOCOL_ERROR),
    "SUBSCRIBE with QoS 3": (encode_packet(8, 2, b"\0\1\0", TOPIC, b"\x03"), PROTOCOL_ERROR),
    "SUBSCRIBE with reserved option bits": (encode_packet(8, 2, b"\0\1\0", TOPIC, b"\x40"), MALFORMED),
    "SUBSCRIBE with retain handling 3": (encode_packet(8, 2, b"\0\1\0", TOPIC, b"\x30"), PROTOCOL_ERROR),
    "SUBSCRIBE with packet identifier 0": (encode_packet(8, 2, b"\0\0\0", TOPIC, b"\x00"), MALFORMED),
    "SUBSCRIBE with subscription identifier 0": (
        encode_packet(8, 2, b"\0\1\2\x0b\x00", TOPIC, b"\x00"),
        PROTOCOL_ERROR,
    ),
    "No Local on a shared subscription": (
        encode_packet(8, 2, b"\0\1\0", encode_text(b"$share/g/t"), b"\x05"),
        PROTOCOL_ERROR,
    ),
    "SUBSCRIBE with an empty filter": (encode_packet(8, 2, b"\0\1\0", TOPIC, b"\0\0\0\0"), MALFORMED),
    "SUBSCRIBE with a property of another packet": (
        encode_packet(8, 2, b"\0\1\5\x11\0\0\0\1", TOPIC, b"\0"),
        MALFORMED,
    ),
    "UNSUBSCRIBE with an empty filter": (encode_packet(10, 2, b"\0\1\0", b"\0\0", TOPIC), MALFORMED),
    "a packet only a server sends, with flags": (b"\xd1\x00", MALFORMED),
    "UNSUBSCRIBE without filters": (encode_packet(10, 2, b"\0\1\0"), PROTOCOL_ERROR),
    "PUBREL without its flags": (b"\x60\x02\x00\x01", MALFORMED),
    "PUBACK with packet identifier 0": (b"\x40\x02\x00\x00", MALFORMED),
    "PUBLISH with QoS 3": (encode_packet(3, 6, TOPIC, b"\0\1\0"), MALFORMED),
    "PUBLISH with DUP and QoS 0": (encode_packet(3, 8, TOPIC, b"\0"), MALFORMED),
    "PUBLISH with packet identifier 0": (encode_packet(3, 2, TOPIC, b"\0\0\0"), MALFORMED),
    "PUBLISH with a wildcard": (encode_packet(3, 0, encode_text(b"a/+"), b"\0"), TOPIC_INVALID),
    "PUBLISH with U+0000 in its topic": (encode_packet(3, 0, encode_text(b"a\0b"), b"\0"), MALFORMED),
    "PUBLISH with a topic that is not UTF-8": (encode_packet(3, 0, encode_text(b"\xff"), b"\0"), MALFORMED),
    "PUBLISH with a surrogate": (encode_packet(3, 0, encode_text(b"\xed\xa0\x80"), b"\0"), MALFORMED),
    "PUBLISH with neither topic nor alias": (encode_packet(3, 0, encode_text(b""), b"\0"), PROTOCOL_ERROR),
    "PUBLISH with topic alias 0": (encode_packet(3, 0, TOPIC, b"\x03\x23\0\0"), ALIAS_INVALID),
    "PUBLISH with a topic alias above the maximum": (encode_packet(3, 0, TOPIC, b"\x03\x23\xff\xff"), ALIAS_INVALID),
    "PUBLISH with an alias never set": (encode_packet(3, 0, encode_text(b""), b"\x03\x23\0\1"), PROTOCOL_ERROR),
    "PUBLISH with a subscription identifier": (encode_packet(3, 0, TOPIC, b"\x02\x0b\x01"), PROTOCOL_ERROR),
    "PUBLISH with a property of another packet": (encode_packet(3, 0, TOPIC, b"\x05\x11\0\0\0\1"), MALFORMED),
    "PUBLISH with a property twice": (encode_packet(3, 0, TOPIC, b"\x04\x01\0\x01\0"), PROTOCOL_ERROR),
    "PUBLISH with a wildcard in its response topic": (
        encode_packet(3, 0, TOPIC, b"\x04\x08\0\x01#"),
        PROTOCOL_ERROR,
    ),
    "PUBLISH whose properties do not fit": (encode_packet(3, 0, TOPIC, b"\x7f"), MALFORMED),
    "AUTH out of the blue": (b"\xf0\x00", PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", CASES)
def test_mqtt_5_is_told_why(port: int, name: str) -> None:
    data, reason = CASES[name]
    with Raw.connected(port, version=5) as client:
        client.send(data)
        said = client.closed()
        assert said[:1] == b"\xe0", f"{name}: {said.hex(' ')}"
        assert said[2] == reason, f"{name}: {said[2]:#x}"


def test_mqtt_3_1_1_is_closed_without_a_word(port: int) -> None:
    with Raw.connected(port) as client:
        client.send(b"\x30\x80\x80\x80\x80\x01")
        assert client.closed() == b""


def test_nobody_else_is_harmed(port: int) -> None:
    topic = unique("bystander")
    with Raw.connected(port) as bystander, Raw.connected(port, version=5) as bad:
        bystander.subscribe((topic, 0))
        bad.send(publish_packet(topic, b"before", version=5) + b"\xc1\x00" + publish_packet(topic, b"after", version=5))
        bad.closed()
        assert bystander.message().payload == b"before"
        bystander.nothing_more()


def test_a_packet_above_the_limit_is_refused_before_it_is_sent(port: int) -> None:
    with Raw.connected(port, version=5) as client:
        client.send(b"\x30\xff\xff\xff\x7f")
        said = client.closed()
        assert said[0] == 0xE0 and said[2] == TOO_LARGE

import pytest

from tests.protocol.mqtt.raw import Raw, publish_packet, subscribe_packet, unique

PINGREQ, PINGRESP, SUBACK = b"\xc0\0", b"\xd0\0", 0x90


@pytest.mark.parametrize("retain", [False, True])
def test_a_publish_sent_in_one_piece_with_the_subscribe_behind_it(port: int, retain: bool) -> None:
    topic = unique("before")
    with Raw.connected(port, version=5) as client:
        before = publish_packet(topic, b"before", retain=retain, version=5)
        after = publish_packet(topic, b"after", version=5)
        client.send(before + subscribe_packet((topic, 0x20), version=5) + after)  # Retain Handling 2
        first, _ = client.packet()
        assert first == SUBACK
        assert client.message().payload == b"after"
        client.send(PINGREQ)
        client.expect(PINGRESP)


def test_a_retained_one_comes_once_and_as_retained(port: int) -> None:
    topic = unique("before")
    with Raw.connected(port, version=5) as client:
        client.send(publish_packet(topic, b"kept", retain=True, version=5) + subscribe_packet((topic, 0), version=5))
        first, _ = client.packet()
        assert first == SUBACK
        message = client.message()
        assert (message.payload, message.retain) == (b"kept", True)
        client.send(PINGREQ)
        client.expect(PINGRESP)

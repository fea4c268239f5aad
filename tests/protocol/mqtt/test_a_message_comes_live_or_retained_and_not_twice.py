import pytest

from mainstem.protocols.mqtt.wire.properties import Property
from tests.protocol.mqtt.raw import Message, Raw, publish_packet, subscribe_packet, unique


@pytest.mark.parametrize("expiry", [0, 100])
def test_when_it_is_published_right_behind_the_subscription(port: int, expiry: int) -> None:
    topic = unique("both")
    with Raw.connected(port, version=5, properties={Property.SESSION_EXPIRY: expiry}) as client:
        client.send(
            subscribe_packet((topic, 0), version=5)
            + publish_packet(topic, b"x", retain=True, version=5)
            + publish_packet(topic, b"end", version=5)
        )
        packets = [client.packet() for _ in range(3)]
        messages = [Message(first, body, 5) for first, body in packets if first >> 4 == 3]
        assert [(m.payload, m.retain) for m in messages] == [(b"x", False), (b"end", False)]
        client.nothing_more()

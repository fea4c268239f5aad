from mainstem.protocols.mqtt.wire.properties import Property
from tests.protocol.mqtt.raw import Raw, unique


def test_are_not_sent_and_count_as_delivered(port: int) -> None:
    topic = unique("large")
    with (
        Raw.connected(port, version=5, properties={Property.MAXIMUM_PACKET_SIZE: 100}) as subscriber,
        Raw.connected(port) as publisher,
    ):
        subscriber.subscribe((topic, 1))
        publisher.publish(topic, b"x" * 200, qos=1)
        publisher.publish(topic, b"small", qos=1)
        assert subscriber.message().payload == b"small"
        subscriber.nothing_more()

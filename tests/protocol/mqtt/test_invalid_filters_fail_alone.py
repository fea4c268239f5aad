import pytest

from tests.protocol.mqtt.raw import Raw, unique

INVALID = ["a/#/b", "a#", "a+/b", "+a", "$share/g", "$share//a", "$share/g+/a", "$share/g/", "$queue/", "$stream/"]


@pytest.mark.parametrize("topic_filter", INVALID)
def test_in_mqtt_5_with_0x8f(port: int, topic_filter: str) -> None:
    good = unique("good")
    with Raw.connected(port, version=5) as client:
        assert client.subscribe((good, 1), (topic_filter, 1), (f"{good}/2", 2)) == [1, 0x8F, 2]
        client.publish(good, b"x")
        assert client.message().payload == b"x"


def test_in_mqtt_3_1_1_with_0x80(port: int) -> None:
    with Raw.connected(port) as client:
        assert client.subscribe(("a/#/b", 1), (unique("good"), 1)) == [0x80, 1]


def test_too_many_subscriptions_fail_with_0x97() -> None:
    from mainstem.testing.broker import Broker

    with Broker("mqtt.subscriptions_max=2") as broker, Raw.connected(broker.mqtt_port, version=5) as client:
        assert client.subscribe(("a", 0), ("b", 0), ("c", 0), ("a", 1)) == [0, 0, 0x97, 1]


def test_unsubscribe_tells_what_was_not_there(port: int) -> None:
    from mainstem.protocols.mqtt.wire.packets import encode_packet
    from mainstem.protocols.mqtt.wire.properties import encode_text

    topic = unique("there")
    with Raw.connected(port, version=5) as client:
        client.subscribe((topic, 0))
        client.send(encode_packet(10, 2, b"\0\7\0", encode_text(topic.encode()), encode_text(b"nowhere")))
        client.expect(b"\xb0\x05\x00\x07\x00\x00\x11")
        client.publish(topic, b"x")
        client.nothing_more()

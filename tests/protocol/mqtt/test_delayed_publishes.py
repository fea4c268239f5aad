import time

from mainstem.protocols.mqtt.wire.properties import Property
from tests.protocol.mqtt.raw import Raw, publish_packet, unique


def test_arrive_when_they_are_due(port: int) -> None:
    topic = unique("delayed")
    with Raw.connected(port) as subscriber, Raw.connected(port, version=5) as publisher:
        subscriber.subscribe((topic, 1))
        started = time.monotonic()
        publisher.publish(f"$delayed/1/{topic}", b"later", qos=1)
        publisher.publish(topic, b"now", qos=1)
        assert subscriber.message().payload == b"now"
        message = subscriber.message()
        assert (message.payload, message.topic, message.qos) == (b"later", topic, 1)
        assert time.monotonic() - started >= 0.9


def test_can_be_retained(port: int) -> None:
    topic = unique("delayed")
    with Raw.connected(port) as watcher, Raw.connected(port) as late, Raw.connected(port) as publisher:
        watcher.subscribe((topic, 1))
        publisher.publish(f"$delayed/0/{topic}", b"first", qos=1, retain=True)
        publisher.publish(f"$delayed/1/{topic}", b"kept", qos=1, retain=True)
        assert [watcher.message().payload for _ in range(2)] == [b"first", b"kept"]
        late.subscribe((topic, 1))
        assert late.message().payload == b"kept"


def test_by_user_property(port: int) -> None:
    topic = unique("delayed")
    due = str(time.time_ns() // 1_000_000 + 700).encode()
    properties = {Property.USER_PROPERTY: [(b"ms-deliver-at", due)]}
    with Raw.connected(port) as subscriber, Raw.connected(port, version=5) as publisher:
        subscriber.subscribe((topic, 1))
        publisher.publish(topic, b"later", qos=1, properties=properties)
        subscriber.nothing_more()
        assert subscriber.message().payload == b"later"


def test_nonsense_is_refused(port: int) -> None:
    with Raw.connected(port, version=5) as publisher:
        for topic in ("$delayed/soon/x", "$delayed/5", "$delayed/99999999999/x", "$delayed/1/$SYS/x"):
            publisher.send(publish_packet(topic, b"x", qos=1, packet_id=3, version=5))
            first, body = publisher.packet()  # with the reason in words behind the code
            assert (first, body[:3]) == (0x40, b"\0\x03\x90")

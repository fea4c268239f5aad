from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import Property, encode_property, encode_text
from tests.protocol.mqtt.raw import Raw, publish_packet, unique


def test_of_a_publisher_stand_for_the_topic_and_are_not_passed_on(port: int) -> None:
    topic = unique("alias")
    alias = {Property.TOPIC_ALIAS: 3}
    with Raw.connected(port, version=5) as subscriber, Raw.connected(port, version=5) as publisher:
        subscriber.subscribe((topic, 0))
        publisher.send(publish_packet(topic, b"one", version=5, properties=alias))
        publisher.send(publish_packet("", b"two", version=5, properties={**alias, Property.CONTENT_TYPE: b"t"}))
        one, two = subscriber.message(), subscriber.message()
        assert (one.topic, one.payload, one.properties) == (topic, b"one", b"")
        assert (two.topic, two.payload) == (topic, b"two")
        assert two.properties == encode_property(Property.CONTENT_TYPE, b"t")


def test_can_be_set_anew(port: int) -> None:
    first, second = unique("alias"), unique("alias")
    alias = {Property.TOPIC_ALIAS: 1}
    with Raw.connected(port, version=5) as subscriber, Raw.connected(port, version=5) as publisher:
        subscriber.subscribe((first, 0), (second, 0))
        for topic in (first, "", second, ""):
            publisher.send(publish_packet(topic, version=5, properties=alias))
        assert [subscriber.message().topic for _ in range(4)] == [first, first, second, second]


def test_do_not_survive_a_reconnect(port: int) -> None:
    client_id = unique("alias")
    with Raw.connected(port, client_id, version=5) as publisher:
        publisher.send(publish_packet("t", version=5, properties={Property.TOPIC_ALIAS: 1}))
        publisher.ping()
    with Raw.connected(port, client_id, version=5) as publisher:
        publisher.send(encode_packet(3, 0, encode_text(b""), b"\x03\x23\0\1"))
        said = publisher.closed()
        assert said[0] == 0xE0 and said[2] == 0x82


def test_to_a_subscriber_are_used_as_far_as_it_allows(port: int) -> None:
    long, other = unique("a/long/topic/name"), unique("another/long/topic")
    options: dict[str, object] = {"version": 5, "properties": {Property.TOPIC_ALIAS_MAXIMUM: 1}}
    with Raw.connected(port, **options) as subscriber, Raw.connected(port) as publisher:
        subscriber.subscribe((long, 0), (other, 0))
        for topic in (long, long, other):
            publisher.publish(topic)
        alias = encode_property(Property.TOPIC_ALIAS, 1)
        got = [subscriber.message() for _ in range(3)]
        assert [(m.topic, m.properties) for m in got] == [(long, alias), ("", alias), (other, b"")]

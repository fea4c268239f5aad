"""A delivery that began is sent again after a reconnect, or gives its place back: no window shrinks for good."""

from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import Property, encode_text
from tests.protocol.mqtt.raw import Raw, unique

ONE_AT_A_TIME: dict[str, object] = {
    "version": 5,
    "clean": False,
    "properties": {Property.SESSION_EXPIRY: 100, Property.RECEIVE_MAXIMUM: 1},
}


def test_also_when_its_filter_was_unsubscribed_from(port: int) -> None:
    """[MQTT-3.10.4-4] and [MQTT-4.4.0-1]."""
    client_id, topic, other = unique("begun"), unique("left"), unique("joined")
    with Raw.connected(port) as publisher:
        with Raw.connected(port, client_id, **ONE_AT_A_TIME) as subscriber:
            subscriber.subscribe((topic, 1))
            publisher.publish(topic, b"begun", qos=1)
            begun = subscriber.message(ack=False)
            subscriber.send(encode_packet(10, 2, b"\0\2\0", encode_text(topic.encode())))
            assert subscriber.packet()[0] == 0xB0
        with Raw.connected(port, client_id, **ONE_AT_A_TIME) as subscriber:
            subscriber.subscribe((other, 1))
            publisher.publish(other, b"next", qos=1)
            again = subscriber.message()
            assert (again.payload, again.packet_id, again.dup) == (b"begun", begun.packet_id, True)
            assert subscriber.message().payload == b"next"


def test_also_when_a_retained_message_is_in_flight_twice(port: int) -> None:
    client_id, topic = unique("twice"), unique("kept")
    options = {**ONE_AT_A_TIME, "properties": {Property.SESSION_EXPIRY: 100, Property.RECEIVE_MAXIMUM: 2}}
    with Raw.connected(port) as publisher:
        publisher.publish(topic, b"kept", qos=1, retain=True)
    with Raw.connected(port, client_id, **options) as subscriber:
        subscriber.subscribe((topic, 1))
        sent = {subscriber.message(ack=False).packet_id}
        subscriber.subscribe((topic + "/#", 1))
        sent.add(subscriber.message(ack=False).packet_id)
    with Raw.connected(port, client_id, **options) as subscriber:
        assert {subscriber.message().packet_id for _ in range(2)} == sent


def test_or_gives_its_place_back_when_the_client_takes_only_smaller_packets(port: int) -> None:
    client_id, topic = unique("smaller"), unique("large")
    with Raw.connected(port) as publisher:
        with Raw.connected(port, client_id, **ONE_AT_A_TIME) as subscriber:
            subscriber.subscribe((topic, 1))
            publisher.publish(topic, b"x" * 500, qos=1)
            subscriber.message(ack=False)
        small = {Property.SESSION_EXPIRY: 100, Property.RECEIVE_MAXIMUM: 1, Property.MAXIMUM_PACKET_SIZE: 300}
        with Raw.connected(port, client_id, version=5, clean=False, properties=small) as subscriber:
            publisher.publish(topic, b"small", qos=1)
            assert subscriber.message().payload == b"small"

import pytest

from mainstem.protocols.mqtt.wire.properties import Property
from tests.protocol.mqtt.raw import Raw, ack_packet, publish_packet, subscribe_packet, unique


def test_a_repetition_before_pubrel_is_answered_and_not_stored(port: int) -> None:
    topic = unique("once")
    with Raw.connected(port) as subscriber, Raw.connected(port) as publisher:
        subscriber.subscribe((topic, 0))
        publisher.send(publish_packet(topic, b"x", qos=2, packet_id=9))
        publisher.expect(ack_packet(5, 9))
        publisher.send(publish_packet(topic, b"x", qos=2, packet_id=9, dup=True))
        publisher.expect(ack_packet(5, 9))
        publisher.send(ack_packet(6, 9))
        publisher.expect(ack_packet(7, 9))
        assert subscriber.message().payload == b"x"
        subscriber.nothing_more()


def test_after_pubrel_the_identifier_is_free_for_a_new_message(port: int) -> None:
    topic = unique("once")
    with Raw.connected(port) as subscriber, Raw.connected(port) as publisher:
        subscriber.subscribe((topic, 0))
        for payload in (b"one", b"two"):
            publisher.publish(topic, payload, qos=2, packet_id=9)
            assert subscriber.message().payload == payload


@pytest.mark.parametrize("version", [4, 5])
def test_across_reconnects(port: int, version: int) -> None:
    topic, client_id = unique("once"), unique("again")
    options: dict[str, object] = {"version": version, "clean": False}
    if version == 5:
        options["properties"] = {Property.SESSION_EXPIRY: 100}
    with Raw.connected(port) as subscriber:
        subscriber.subscribe((topic, 0))
        with Raw.connected(port, client_id, **options) as publisher:
            publisher.send(publish_packet(topic, b"x", qos=2, packet_id=7, version=version))
            publisher.expect(ack_packet(5, 7))
        with Raw.connected(port, client_id, **options) as publisher:
            publisher.send(publish_packet(topic, b"x", qos=2, packet_id=7, dup=True, version=version))
            publisher.expect(ack_packet(5, 7))
            publisher.send(ack_packet(6, 7))
            publisher.expect(ack_packet(7, 7))
        assert subscriber.message().payload == b"x"
        subscriber.nothing_more()


def test_pubrel_of_an_unknown_identifier_is_answered(port: int) -> None:
    with Raw.connected(port) as old, Raw.connected(port, version=5) as new:
        old.send(ack_packet(6, 77))
        old.expect(ack_packet(7, 77))
        new.send(ack_packet(6, 77))
        new.expect(b"\x70\x03\x00\x4d\x92")


def test_acks_for_identifiers_that_are_not_in_flight_harm_nobody(port: int) -> None:
    with Raw.connected(port) as client:
        client.send(ack_packet(4, 5) + ack_packet(7, 6))
        client.send(ack_packet(5, 8))
        client.expect(ack_packet(6, 8))
        client.ping()


def test_mqtt_3_1_repeats_what_it_releases_and_subscribes_to_with_dup(port: int) -> None:
    topic = unique("old")
    with Raw.connected(port, unique("old"), version=3, clean=False) as client, Raw.connected(port) as reader:
        reader.subscribe((topic, 0))
        client.send(publish_packet(topic, b"once", qos=2, packet_id=5, dup=True))
        client.expect(ack_packet(5, 5))
        for _ in range(2):
            client.send(bytes((0x6A, 2, 0, 5)))  # PUBREL with DUP
            client.expect(ack_packet(7, 5))
        subscribe = subscribe_packet((topic, 0), packet_id=6)
        client.send(bytes((subscribe[0] | 8,)) + subscribe[1:])
        client.expect(bytes((0x90, 3, 0, 6, 0)))
        assert reader.message().payload == b"once"
        reader.nothing_more()
    with Raw.connected(port, unique("new"), version=4) as client:
        client.send(bytes((0x6A, 2, 0, 5)))
        client.closed()

import pytest

from mainstem.protocols.mqtt.wire.properties import Property, encode_bare
from tests.protocol.mqtt.raw import Raw, unique

PROPERTIES = {
    Property.USER_PROPERTY: [(b"b", b"1"), (b"a", b"2"), (b"b", b"1"), ("ü".encode(), "ß\ufeff".encode()), (b"", b"")],
    Property.PAYLOAD_FORMAT: 1,
    Property.CONTENT_TYPE: b"application/json",
    Property.RESPONSE_TOPIC: b"reply/here",
    Property.CORRELATION_DATA: bytes(range(256)),
}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_in_order_and_with_duplicates(port: int, qos: int) -> None:
    topic = unique("properties")
    with Raw.connected(port, version=5) as subscriber, Raw.connected(port, version=5) as publisher:
        subscriber.subscribe((topic, 2))
        publisher.publish(topic, b"{}", qos=qos, properties=PROPERTIES)
        assert subscriber.message().properties == encode_bare(PROPERTIES)


def test_also_when_retained(port: int) -> None:
    topic = unique("properties")
    with Raw.connected(port, version=5) as subscriber, Raw.connected(port, version=5) as publisher:
        publisher.publish(topic, b"{}", qos=1, retain=True, properties=PROPERTIES)
        subscriber.subscribe((topic, 2))
        assert subscriber.message().properties == encode_bare(PROPERTIES)


def test_a_client_without_properties_gets_the_payload(port: int) -> None:
    topic = unique("properties")
    with Raw.connected(port) as subscriber, Raw.connected(port, version=5) as publisher:
        subscriber.subscribe((topic, 0))
        publisher.publish(topic, b"{}", properties=PROPERTIES)
        assert subscriber.message().payload == b"{}"


def test_a_payload_that_is_not_the_text_it_claims_to_be_is_refused(port: int) -> None:
    from tests.protocol.mqtt.raw import publish_packet

    topic = unique("properties")
    claim = {Property.PAYLOAD_FORMAT: 1}
    with Raw.connected(port, version=5) as client:
        client.send(publish_packet(topic, b"\xff", qos=1, packet_id=3, version=5, properties=claim))
        kind, body = client.packet()
        assert (kind, body[:3]) == (0x40, b"\x00\x03\x99")

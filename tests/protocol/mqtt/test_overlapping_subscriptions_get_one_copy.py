from mainstem.protocols.mqtt.wire.properties import Property, encode_property
from tests.protocol.mqtt.raw import Raw, unique


def test_with_the_highest_qos_and_every_identifier(port: int) -> None:
    topic = unique("overlap")
    with Raw.connected(port, version=5) as subscriber, Raw.connected(port) as publisher:
        subscriber.subscribe((f"{topic}/#", 0), properties={Property.SUBSCRIPTION_ID: [1]})
        subscriber.subscribe((f"{topic}/+", 2), properties={Property.SUBSCRIPTION_ID: [200]})
        subscriber.subscribe((f"{topic}/a", 1))
        publisher.publish(f"{topic}/a", b"x", qos=2)
        message = subscriber.message()
        assert message.qos == 2
        identifiers = {encode_property(Property.SUBSCRIPTION_ID, n) for n in (1, 200)}
        assert {message.properties[:2], message.properties[2:]} == identifiers or {
            message.properties[:3],
            message.properties[3:],
        } == identifiers
        subscriber.nothing_more()


def test_also_when_the_session_catches_up(port: int) -> None:
    topic, client_id = unique("overlap"), unique("session")
    with Raw.connected(port) as publisher:
        with Raw.connected(port, client_id, clean=False) as subscriber:
            subscriber.subscribe((f"{topic}/#", 1), (f"{topic}/+", 1))
            subscriber.disconnect()
        publisher.publish(f"{topic}/a", b"x", qos=1)
        with Raw.connected(port, client_id, clean=False) as subscriber:
            assert subscriber.message().payload == b"x"
            subscriber.nothing_more()


def test_subscribing_again_replaces(port: int) -> None:
    topic = unique("overlap")
    with Raw.connected(port, version=5) as subscriber, Raw.connected(port) as publisher:
        subscriber.subscribe((topic, 2), properties={Property.SUBSCRIPTION_ID: [1]})
        subscriber.subscribe((topic, 0), properties={Property.SUBSCRIPTION_ID: [2]})
        publisher.publish(topic, b"x", qos=2)
        message = subscriber.message()
        assert (message.qos, message.properties) == (0, encode_property(Property.SUBSCRIPTION_ID, 2))
        subscriber.nothing_more()

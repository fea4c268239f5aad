import time

from mainstem.protocols.mqtt.wire.properties import Property, encode_property
from tests.protocol.mqtt.raw import Raw, unique


def expiry(seconds: int) -> bytes:
    return encode_property(Property.MESSAGE_EXPIRY, seconds)


def test_a_live_delivery_has_all_of_it(port: int) -> None:
    topic = unique("expiry")
    with Raw.connected(port, version=5) as subscriber, Raw.connected(port, version=5) as publisher:
        subscriber.subscribe((topic, 0))
        publisher.publish(topic, b"x", properties={Property.MESSAGE_EXPIRY: 100})
        assert subscriber.message().properties == expiry(100)


def test_an_absent_session_gets_what_is_left_and_nothing_that_expired(port: int) -> None:
    topic, client_id = unique("expiry"), unique("session")
    options: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 100}}
    with Raw.connected(port, version=5) as publisher:
        with Raw.connected(port, client_id, **options) as subscriber:
            subscriber.subscribe((topic, 1))
            subscriber.disconnect()
        publisher.publish(topic, b"short", qos=1, properties={Property.MESSAGE_EXPIRY: 1})
        publisher.publish(topic, b"long", qos=1, properties={Property.MESSAGE_EXPIRY: 100})
        time.sleep(2.5)
        with Raw.connected(port, client_id, **options) as subscriber:
            message = subscriber.message()
            assert message.payload == b"long"
            assert message.properties in [expiry(n) for n in (96, 97, 98)]
            subscriber.nothing_more()


def test_retained_messages_expire_too(port: int) -> None:
    topic = unique("expiry")
    with Raw.connected(port, version=5) as publisher:
        publisher.publish(topic, b"kept", qos=1, retain=True, properties={Property.MESSAGE_EXPIRY: 1})
        time.sleep(2.5)
    with Raw.connected(port, version=5) as subscriber:
        subscriber.subscribe((topic, 0))
        subscriber.nothing_more()

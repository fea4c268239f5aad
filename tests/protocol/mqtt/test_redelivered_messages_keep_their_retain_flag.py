from mainstem.protocols.mqtt.wire.properties import Property
from tests.protocol.mqtt.raw import Raw, unique

RETAIN_AS_PUBLISHED = 8


def test_whether_they_were_retained_or_came_as_published(port: int) -> None:
    client_id, topic = unique("flag"), unique("kept")
    options: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 100}}
    with Raw.connected(port) as publisher:
        publisher.publish(topic, b"old", qos=1, retain=True)
        with Raw.connected(port, client_id, **options) as subscriber:
            subscriber.subscribe((topic, 1 | RETAIN_AS_PUBLISHED))
            subscriber.message(ack=False)
            publisher.publish(topic, b"new", qos=1, retain=True)
            publisher.publish(topic, b"plain", qos=1)
            subscriber.message(ack=False)
            subscriber.message(ack=False)
    with Raw.connected(port, client_id, **options) as subscriber:
        again = [subscriber.message() for _ in range(3)]
        assert [(m.payload, m.retain, m.dup) for m in again] == [
            (b"old", True, True),
            (b"new", True, True),
            (b"plain", False, True),
        ]

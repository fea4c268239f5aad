from mainstem.protocols.mqtt.wire.properties import Property
from tests.protocol.mqtt.raw import Raw, unique


def test_the_old_connection_is_told_so(port: int) -> None:
    client_id = unique("takeover")
    with Raw.connected(port, client_id, version=5) as old, Raw.connected(port, client_id, version=5) as new:
        said = old.closed()
        assert said[0] == 0xE0 and said[2] == 0x8E
        new.ping()


def test_its_subscriptions_and_messages_go_on_in_the_new_one(port: int) -> None:
    client_id, topic = unique("takeover"), unique("t")
    options: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 100}}
    with Raw.connected(port, client_id, **options) as old, Raw.connected(port) as publisher:
        old.subscribe((topic, 1))
        publisher.publish(topic, b"unacked", qos=1)
        assert old.message(ack=False).payload == b"unacked"
        with Raw.connected(port, client_id, **options) as new:
            assert new.session_present
            again = new.message()
            assert (again.payload, again.dup) == (b"unacked", True)
            publisher.publish(topic, b"new", qos=1)
            assert new.message().payload == b"new"
            old.closed()


def test_the_will_of_the_old_one_is_sent(port: int) -> None:
    client_id, topic = unique("takeover"), unique("will")
    with Raw.connected(port) as watcher:
        watcher.subscribe((topic, 0))
        with (
            Raw.connected(port, client_id, will=(topic, b"gone", 0, False)),
            Raw.connected(port, client_id),
        ):
            assert watcher.message().payload == b"gone"

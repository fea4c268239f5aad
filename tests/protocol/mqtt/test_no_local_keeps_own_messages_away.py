from mainstem.protocols.mqtt.wire.properties import Property, encode_property
from tests.protocol.mqtt.raw import Message, Raw, publish_packet, unique

NO_LOCAL = 4


def test_and_nobody_elses(port: int) -> None:
    topic = unique("local")
    with Raw.connected(port, version=5) as client, Raw.connected(port) as other:
        client.subscribe((topic, NO_LOCAL))
        client.publish(topic, b"own")
        other.publish(topic, b"other")
        assert client.message().payload == b"other"
        client.nothing_more()


def test_also_while_the_session_is_absent(port: int) -> None:
    topic, client_id = unique("local"), unique("session")
    options: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 100}}
    with Raw.connected(port) as other:
        with Raw.connected(port, client_id, **options) as client:
            client.subscribe((topic, NO_LOCAL | 1))
            client.publish(topic, b"own", qos=1)
        other.publish(topic, b"other", qos=1)
        with Raw.connected(port, client_id, **options) as client:
            assert client.message().payload == b"other"
            client.nothing_more()


def test_an_overlapping_subscription_without_it_gets_them(port: int) -> None:
    topic = unique("local")
    with Raw.connected(port, version=5) as client:
        client.subscribe((topic, NO_LOCAL), (f"{topic}/#", 0))
        client.publish(topic, b"own")
        assert client.message().payload == b"own"
        client.nothing_more()


def test_and_has_no_part_in_what_an_overlapping_subscription_gets(port: int) -> None:
    topic = unique("local")
    with Raw.connected(port, version=5) as client, Raw.connected(port) as other:
        client.subscribe((f"{topic}/+", NO_LOCAL | 2), properties={Property.SUBSCRIPTION_ID: [1]})
        client.subscribe((f"{topic}/#", 0), properties={Property.SUBSCRIPTION_ID: [2]})
        client.send(publish_packet(f"{topic}/a", b"own", qos=1, version=5))
        first, body = next(found for found in (client.packet(), client.packet()) if found[0] != 0x40)
        own = Message(first, body, 5)
        assert (own.payload, own.qos, own.properties) == (b"own", 0, encode_property(Property.SUBSCRIPTION_ID, 2))
        other.publish(f"{topic}/a", b"other", qos=2)
        others = client.message()
        assert (others.payload, others.qos) == (b"other", 2)
        assert len(others.properties) == 2 * len(own.properties)
        client.nothing_more()


def test_also_what_it_retained_itself_before_anybody_asked_for_no_local(port: int) -> None:
    topic, client_id = unique("local"), unique("retainer")
    with Raw.connected(port, client_id, version=5) as client, Raw.connected(port) as other:
        client.publish(f"{topic}/own", b"own", qos=1, retain=True)
        other.publish(f"{topic}/other", b"other", qos=1, retain=True)
        client.subscribe((f"{topic}/+", NO_LOCAL | 1))
        assert client.message().payload == b"other"
        client.nothing_more()
        client.subscribe((f"{topic}/#", 1))
        assert {client.message().payload, client.message().payload} == {b"own", b"other"}
    with Raw.connected(port, unique("reader"), version=5) as reader:
        reader.subscribe((f"{topic}/+", NO_LOCAL | 1))
        assert {reader.message().payload, reader.message().payload} == {b"own", b"other"}


def test_also_a_retained_will_of_its_own(port: int) -> None:
    topic, client_id = unique("local"), unique("lost")
    with Raw.connected(port, unique("watch"), version=5) as watcher:
        watcher.subscribe((topic, 1))
        with Raw.connected(port, client_id, version=5, will=(topic, b"will", 1, True)):
            pass
        assert watcher.message().payload == b"will"
    with Raw.connected(port, client_id, version=5) as again:
        again.subscribe((topic, NO_LOCAL | 1))
        again.nothing_more()

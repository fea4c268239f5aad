"""What was missed comes from the log, in order, however many logs it lies in."""

from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw, unique


def test_an_absent_client_receives_what_it_missed_in_order(port: int) -> None:
    topic, client_id = unique("missed"), unique("session")
    with Raw.connected(port) as publisher:
        with Raw.connected(port, client_id, clean=False) as subscriber:
            subscriber.subscribe((f"{topic}/#", 1))
            subscriber.disconnect()
        for n in range(1000):
            publisher.send(_publish(f"{topic}/{n % 7}", n))
        publisher.acks(1000)
        with Raw.connected(port, client_id, clean=False) as subscriber:
            assert [int(subscriber.message().payload) for _ in range(1000)] == list(range(1000))
            publisher.publish(f"{topic}/x", b"live", qos=1)
            assert subscriber.message().payload == b"live"
            subscriber.nothing_more()


def _publish(topic: str, n: int) -> bytes:
    from tests.protocol.mqtt.raw import publish_packet

    return publish_packet(topic, b"%d" % n, qos=1, packet_id=n + 1)


def test_qos_0_is_not_kept_for_it(port: int) -> None:
    topic, client_id = unique("missed"), unique("session")
    with Raw.connected(port) as publisher:
        with Raw.connected(port, client_id, clean=False) as subscriber:
            subscriber.subscribe((topic, 1), (f"{topic}/zero", 0))
            subscriber.disconnect()
        publisher.publish(topic, b"qos 0")
        publisher.publish(f"{topic}/zero", b"subscribed with 0", qos=1)
        publisher.publish(topic, b"qos 1", qos=1)
        with Raw.connected(port, client_id, clean=False) as subscriber:
            assert subscriber.message().payload == b"qos 1"
            subscriber.nothing_more()


def test_records_of_several_logs_come_in_the_order_they_were_written() -> None:
    rules = ("policies.own/1.layout=dedicated", "policies.own/2.layout=dedicated")
    with Broker(*rules) as broker, Raw.connected(broker.mqtt_port) as publisher:
        with Raw.connected(broker.mqtt_port, "s", clean=False) as subscriber:
            subscriber.subscribe(("#", 1))
            subscriber.disconnect()
        topics = ["own/1", "shared/a", "own/2", "shared/b", "own/1"] * 40
        for n, topic in enumerate(topics):
            publisher.publish(topic, b"%d" % n, qos=1)
        with Raw.connected(broker.mqtt_port, "s", clean=False) as subscriber:
            assert [int(subscriber.message().payload) for _ in topics] == list(range(len(topics)))
            subscriber.nothing_more()


def test_a_subscription_begins_where_it_was_made(port: int) -> None:
    topic, client_id = unique("begins"), unique("session")
    options: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 100}}
    with Raw.connected(port) as publisher:
        with Raw.connected(port, client_id, **options) as subscriber:
            subscriber.subscribe((f"{topic}/a", 1))
            subscriber.disconnect()
        publisher.publish(f"{topic}/b", b"before it was subscribed", qos=1)
        publisher.publish(f"{topic}/a", b"a", qos=1)
        with Raw.connected(port, client_id, **options) as subscriber:
            subscriber.subscribe((f"{topic}/b", 1))
            publisher.publish(f"{topic}/b", b"b", qos=1)
            assert [subscriber.message().payload for _ in range(2)] == [b"a", b"b"]
            subscriber.nothing_more()


def test_it_expires_when_its_time_is_over(port: int) -> None:
    import time

    client_id = unique("session")
    options: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 1}}
    with Raw.connected(port, client_id, **options) as client:
        client.disconnect()
    deadline = time.monotonic() + 10
    while True:
        time.sleep(2.2)
        with Raw.connected(port, client_id, **options) as client:
            if not client.session_present:
                return
            client.disconnect()
        assert time.monotonic() < deadline

from mainstem.protocols.mqtt.wire.properties import Property
from tests.protocol.mqtt.raw import Raw, ack_packet, unique


def test_of_the_new_connection_and_goes_on_with_each_acknowledgement(port: int) -> None:
    """[MQTT-3.3.4-9]; Receive Maximum belongs to the connection, not to the session."""
    client_id, topic = unique("window"), unique("again")
    options: dict[str, object] = {"version": 5, "clean": False}
    with Raw.connected(port) as publisher:
        wide = {Property.SESSION_EXPIRY: 100}
        with Raw.connected(port, client_id, **options, properties=wide) as subscriber:
            subscriber.subscribe((topic, 1))
            for n in range(5):
                publisher.publish(topic, b"%d" % n, qos=1)
            sent = [subscriber.message(ack=False).packet_id for _ in range(5)]
            subscriber.disconnect()
        publisher.publish(topic, b"5", qos=1)
    narrow = {Property.SESSION_EXPIRY: 100, Property.RECEIVE_MAXIMUM: 2}
    with Raw.connected(port, client_id, **options, properties=narrow) as subscriber:
        waiting = [subscriber.message(ack=False) for _ in range(2)]
        subscriber.nothing_more()
        got = []
        while waiting:
            first = waiting.pop(0)
            got.append((first.payload, first.dup))
            subscriber.send(ack_packet(4, first.packet_id))
            if len(got) < 5:
                waiting.append(subscriber.message(ack=False))
        assert got == [(b"%d" % n, n < 5) for n in range(6)]
        assert len(set(sent)) == 5
        subscriber.nothing_more()

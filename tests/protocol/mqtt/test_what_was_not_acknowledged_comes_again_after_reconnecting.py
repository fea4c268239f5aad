from tests.protocol.mqtt.raw import Raw, ack_packet, unique


def test_in_order_with_dup_and_the_same_identifiers(port: int) -> None:
    topic, client_id = unique("again"), unique("session")
    with Raw.connected(port) as publisher:
        with Raw.connected(port, client_id, clean=False) as subscriber:
            subscriber.subscribe((topic, 1))
            for n in range(5):
                publisher.publish(topic, b"%d" % n, qos=1)
            first = [subscriber.message(ack=False) for _ in range(5)]
            subscriber.send(ack_packet(4, first[1].packet_id))
            subscriber.disconnect()  # so that "new" is not sent to who has just left
        publisher.publish(topic, b"new", qos=1)
        with Raw.connected(port, client_id, clean=False) as subscriber:
            again = [subscriber.message() for _ in range(5)]
            assert [m.payload for m in again] == [b"0", b"2", b"3", b"4", b"new"]
            assert [m.dup for m in again] == [True] * 4 + [False]
            assert [m.packet_id for m in again[:4]] == [first[n].packet_id for n in (0, 2, 3, 4)]
            subscriber.nothing_more()


def test_qos_2_goes_on_where_it_stood(port: int) -> None:
    topic, client_id = unique("again"), unique("session")
    with Raw.connected(port) as publisher:
        with Raw.connected(port, client_id, clean=False) as subscriber:
            subscriber.subscribe((topic, 2))
            publisher.publish(topic, b"received", qos=2)
            received = subscriber.message(ack=False)
            subscriber.send(ack_packet(5, received.packet_id))
            subscriber.expect(ack_packet(6, received.packet_id))
            publisher.publish(topic, b"sent", qos=2)
            sent = subscriber.message(ack=False)
        with Raw.connected(port, client_id, clean=False) as subscriber:
            subscriber.expect(ack_packet(6, received.packet_id))
            subscriber.send(ack_packet(7, received.packet_id))
            again = subscriber.message()
            assert (again.payload, again.dup, again.packet_id) == (b"sent", True, sent.packet_id)
            subscriber.nothing_more()
        with Raw.connected(port, client_id, clean=False) as subscriber:
            subscriber.nothing_more()


def test_not_on_a_living_connection(port: int) -> None:
    topic = unique("again")
    with Raw.connected(port) as subscriber, Raw.connected(port) as publisher:
        subscriber.subscribe((topic, 1))
        publisher.publish(topic, b"x", qos=1)
        subscriber.message(ack=False)
        subscriber.nothing_more()


def test_a_retained_message_that_was_not_acknowledged_comes_again(port: int) -> None:
    topic, client_id = unique("again"), unique("session")
    with Raw.connected(port) as publisher:
        publisher.publish(topic, b"kept", qos=1, retain=True)
        publisher.publish(unique("other"), b"later", qos=1)
        with Raw.connected(port, client_id, clean=False) as subscriber:
            subscriber.subscribe((topic, 1))
            first = subscriber.message(ack=False)
            assert first.retain
        with Raw.connected(port, client_id, clean=False) as subscriber:
            again = subscriber.message()
            assert (again.payload, again.dup, again.packet_id) == (b"kept", True, first.packet_id)
            subscriber.nothing_more()

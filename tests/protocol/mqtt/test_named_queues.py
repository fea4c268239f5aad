import select

from mainstem.protocols.mqtt.wire.properties import Property
from tests.protocol.mqtt.raw import Raw, ack_packet, unique

RELEASE, POISON = 0x80, 0x99


def puback(packet_id: int, reason: int) -> bytes:
    return b"\x40\x03" + packet_id.to_bytes(2, "big") + bytes((reason,))


def test_a_queue_is_made_filled_and_worked_off_by_whoever_joins(port: int) -> None:
    topic, queue = unique("jobs"), unique("queue")
    with Raw.connected(port) as publisher:
        with Raw.connected(port) as maker:
            assert maker.subscribe((f"$queue/{queue}/{topic}/#", 1)) == [1]
            maker.disconnect()
        for n in range(6):
            publisher.publish(f"{topic}/{n}", b"%d" % n, qos=n % 3)
        with Raw.connected(port) as a, Raw.connected(port) as b:
            a.subscribe((f"$queue/{queue}", 1))
            first = [a.message() for _ in range(6)]
            assert [m.payload for m in first] == [b"%d" % n for n in range(6)]
            assert {m.qos for m in first} == {1}
            b.subscribe((f"$queue/{queue}/{topic}/#", 1))
            b.nothing_more()


def test_a_negative_puback_gives_a_message_back_and_counts(port: int) -> None:
    topic, queue = unique("jobs"), unique("queue")
    with Raw.connected(port, version=5) as worker, Raw.connected(port) as publisher:
        worker.subscribe((f"$queue/{queue}/{topic}", 1))
        publisher.publish(topic, b"job", qos=1)
        first = worker.message(ack=False)
        worker.send(puback(first.packet_id, RELEASE))
        again = worker.message(ack=False)
        assert (again.payload, again.dup) == (b"job", False)
        assert b"ms-delivery-count\x00\x011" in again.properties
        worker.send(ack_packet(4, again.packet_id))
        worker.nothing_more()


def test_poison_does_not_come_back(port: int) -> None:
    topic, queue = unique("jobs"), unique("queue")
    with Raw.connected(port, version=5) as worker, Raw.connected(port) as publisher:
        worker.subscribe((f"$queue/{queue}/{topic}", 1))
        publisher.publish(topic, b"poison", qos=1)
        worker.send(puback(worker.message(ack=False).packet_id, POISON))
        publisher.publish(topic, b"good", qos=1)
        assert worker.message().payload == b"good"
        worker.nothing_more()


def test_joining_with_another_filter_or_a_name_that_is_not_there_fails(port: int) -> None:
    topic, queue = unique("jobs"), unique("queue")
    with Raw.connected(port, version=5) as worker:
        worker.subscribe((f"$queue/{queue}/{topic}", 1))
        assert worker.subscribe((f"$queue/{queue}/other/#", 1)) == [0x8F]
        assert worker.subscribe((f"$queue/{unique('nowhere')}", 1))[0] >= 0x80


def test_a_shared_group_of_the_same_name_and_filter_joins_it(port: int) -> None:
    topic, queue = unique("jobs"), unique("queue")
    with Raw.connected(port) as publisher:
        with Raw.connected(port) as maker:
            maker.subscribe((f"$queue/{queue}/{topic}", 1))
            maker.disconnect()
        publisher.publish(topic, b"waiting", qos=1)
        with Raw.connected(port) as member:
            member.subscribe((f"$share/{queue}/{topic}", 1))
            assert member.message().payload == b"waiting"


def test_ordered_by_key_one_record_of_a_key_is_out_at_a_time(port: int) -> None:
    topic, queue = unique("jobs"), unique("queue")
    order = {Property.USER_PROPERTY: [(b"queue-order", b"key")]}
    with Raw.connected(port, version=5) as a, Raw.connected(port, version=5) as b, Raw.connected(port) as publisher:
        a.subscribe((f"$queue/{queue}/{topic}/+", 1), properties=order)
        b.subscribe((f"$queue/{queue}", 1))
        for n in range(4):
            publisher.publish(f"{topic}/same", b"%d" % n, qos=1)
        for n in range(4):
            ready, _, _ = select.select([a.socket, b.socket], [], [], 5)
            worker = a if ready == [a.socket] else b
            message = worker.message(ack=False)
            assert message.payload == b"%d" % n
            a.nothing_more()
            b.nothing_more()
            worker.send(ack_packet(4, message.packet_id))

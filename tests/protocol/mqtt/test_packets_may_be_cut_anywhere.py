import random

from tests.protocol.mqtt.raw import Raw, publish_packet, unique


def test_in_any_number_of_pieces(port: int) -> None:
    topic, chance = unique("cut"), random.Random(7)
    packets = [publish_packet(topic, b"%d" % n + b"." * chance.choice([0, 1, 100, 200, 20_000])) for n in range(50)]
    data = b"".join(packets)
    with Raw.connected(port) as subscriber, Raw.connected(port) as publisher:
        subscriber.subscribe((topic, 0))
        at = 0
        while at < len(data):
            size = chance.choice([1, 2, 3, 50, 5_000])
            publisher.send(data[at : at + size])
            at += size
        assert [int(subscriber.message().payload.rstrip(b".")) for _ in range(50)] == list(range(50))


def test_a_large_message_arrives_whole(port: int) -> None:
    topic, payload = unique("large"), random.Random(3).randbytes(3_000_000)
    with Raw.connected(port) as subscriber, Raw.connected(port) as publisher:
        subscriber.subscribe((topic, 1))
        publisher.publish(topic, payload, qos=1)
        assert subscriber.message().payload == payload

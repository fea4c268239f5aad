"""Live push and catching up change over at any record: a subscriber that stalls at random sees every message once."""

import random
import threading

import pytest

from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw, ack_packet, publish_packet

MESSAGES = 6000
TOPICS = 5


def publish_all(port: int, seed: int) -> None:
    chance = random.Random(seed)
    with Raw.connected(port) as publisher:
        n = 0
        while n < MESSAGES:
            burst = min(chance.choice([1, 5, 100, 400]), MESSAGES - n)
            packets = []
            for number in range(n, n + burst):
                topic = f"{'own' if number % TOPICS == 0 else 'shared'}/{number % TOPICS}"
                packets.append(publish_packet(topic, b"%d" % number, qos=1, packet_id=number % 60_000 + 1))
            publisher.send(b"".join(packets))
            publisher.acks(burst)
            n += burst


@pytest.mark.parametrize("seed", range(4))
def test_no_loss_no_double_no_reorder(seed: int) -> None:
    chance = random.Random(seed)
    with Broker("policies.own/0.layout=dedicated") as broker:
        window = chance.choice([1, 3, 50, 1000])
        options: dict[str, object] = {
            "version": 5,
            "clean": False,
            "properties": {Property.SESSION_EXPIRY: 1000, Property.RECEIVE_MAXIMUM: window},
        }
        subscriber = Raw.connected(broker.mqtt_port, "stalls", **options)
        subscriber.subscribe(("own/#", 1), ("shared/+", 1), ("#", 0))
        publishing = threading.Thread(target=publish_all, args=(broker.mqtt_port, seed))
        publishing.start()
        got: list[int] = []
        unacked: list[int] = []
        while len(got) < MESSAGES:
            message = subscriber.message(ack=False)
            if not message.dup or int(message.payload) not in got:  # else: read before, not acknowledged
                got.append(int(message.payload))
            unacked.append(message.packet_id)
            if len(unacked) >= window or chance.random() < 0.3:
                for packet_id in unacked:
                    subscriber.send(ack_packet(4, packet_id))
                unacked.clear()
            if chance.random() < 0.001:
                unacked.clear()
                subscriber.socket.close()
                subscriber = Raw.connected(broker.mqtt_port, "stalls", **options)
        publishing.join()
        subscriber.nothing_more()
        subscriber.socket.close()
        assert sorted(got) == list(range(MESSAGES))
        for topic in range(TOPICS):  # order is promised within a topic
            mine = [number for number in got if number % TOPICS == topic]
            assert mine == sorted(mine)

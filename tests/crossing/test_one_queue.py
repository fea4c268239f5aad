"""A named queue is one queue: AMQP, MQTT and Kafka consumers compete for it, and ack, release, reject, lock expiry,
attempts and dead letters mean the same to all of them."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pika
import pytest

from mainstem.testing import Broker
from tests.crossing.commands import eventually, http, mainstem
from tests.crossing.message import Message, Speaker
from tests.crossing.share_values import ValueMember
from tests.protocol.kafka.share_member import ACCEPT, REJECT, RELEASE
from tests.protocol.mqtt.raw import Raw, ack_packet

RECEIVE_MAXIMUM = 33
REJECTED_BY_MQTT = 0x83


class AmqpWorker:
    """Holds what it gets until it is told what to do with it."""

    def __init__(self, broker: Broker, queue: str, prefetch: int) -> None:
        self._connection = pika.BlockingConnection(
            pika.ConnectionParameters(broker.host, broker.amqp_port, heartbeat=0)
        )
        self.channel = self._connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.held: list[tuple[Any, bytes]] = []
        self.channel.basic_consume(queue, lambda _, method, __, body: self.held.append((method, body)))

    def take(self, count: int) -> list[tuple[Any, bytes]]:
        def enough() -> bool:
            self._connection.process_data_events(time_limit=0)
            return len(self.held) >= count

        eventually(enough, f"{count} messages for the AMQP consumer")
        taken, self.held = self.held[:count], self.held[count:]
        return taken

    def idle(self) -> bool:
        self._connection.process_data_events(time_limit=0.3)
        return not self.held

    def settled(self) -> None:
        """What was acked before is known to the broker: a synchronous call came back."""
        self.channel.basic_qos(prefetch_count=1000)

    def close(self) -> None:
        self._connection.close()


class MqttWorker:
    """Raw, so that it may answer as it likes; holds at most `window` messages."""

    def __init__(self, broker: Broker, topic_filter: str, window: int) -> None:
        self._raw = Raw.connected(broker.mqtt_port, version=5, properties={RECEIVE_MAXIMUM: window})
        codes = self._raw.subscribe((topic_filter, 1))
        assert codes == [1], codes

    def take(self, count: int) -> list[tuple[int, bytes]]:
        self.taken = [self._raw.message(ack=False) for _ in range(count)]
        return [(message.packet_id, message.payload) for message in self.taken]

    def failed_before(self) -> list[int]:
        """Of what was taken last: deliveries that came to nothing. A first one says no number."""
        told = [re.search(rb"ms-delivery-count\x00.(\d+)", message.properties, re.DOTALL) for message in self.taken]
        return [int(one[1]) if one else 0 for one in told]

    def ack(self, packet_id: int, reason: int = 0) -> None:
        packet = ack_packet(4, packet_id)
        self._raw.send(packet if not reason else b"\x40\x03" + packet[2:] + bytes((reason,)))

    def settled(self) -> None:
        self._raw.ping()

    def close(self) -> None:
        self._raw.socket.close()


@pytest.fixture
def jobs(broker: Broker) -> Iterator[str]:
    """A queue over `<name>/#`: three attempts, locks of one second."""
    name = f"jobs{uuid.uuid4().hex[:8]}"
    mainstem(broker, "queue", "create", name, f"{name}/#", "--attempts", "3", "--lock", "1s")
    yield name
    mainstem(broker, "queue", "rm", name, "--yes")


def publish(speakers: dict[str, Speaker], queue: str, count: int) -> list[bytes]:
    values = [b"job %d" % n for n in range(count)]
    for n, value in enumerate(values):
        speakers[("mqtt", "kafka", "amqp")[n % 3]].say(Message(f"{queue}/{n % 3}", value))
    return values


def facts(broker: Broker, queue: str) -> dict[str, Any]:
    return http(broker, "GET", f"/v1/queues/{queue}")


def settled(broker: Broker, queue: str, **expected: int) -> None:
    eventually(lambda: {name: facts(broker, queue)[name] for name in expected} == expected, f"{queue} is {expected}")


def test_three_protocols_hold_different_messages_of_one_queue(
    broker: Broker, speakers: dict[str, Speaker], jobs: str
) -> None:
    amqp, mqtt = AmqpWorker(broker, jobs, 10), MqttWorker(broker, f"$queue/{jobs}", 10)
    said = publish(speakers, jobs, 30)
    by_amqp, by_mqtt = amqp.take(10), mqtt.take(10)
    with ValueMember(broker, jobs, jobs) as kafka:
        by_kafka = kafka.hold(30)
        assert len(by_kafka) == 10
        settled(broker, jobs, ready=0, unacked=30)
        values = [body for _, body in by_amqp] + [body for _, body in by_mqtt] + [held.value for held in by_kafka]
        assert sorted(values) == sorted(said)
        for method, _ in by_amqp:
            amqp.channel.basic_ack(method.delivery_tag)
        for packet_id, _ in by_mqtt:
            mqtt.ack(packet_id)
        for held in by_kafka:
            assert kafka.settle_one(held, ACCEPT) == 0
        settled(broker, jobs, ready=0, unacked=0, dead=0)
    amqp.close()
    mqtt.close()


def test_all_compete_at_the_same_time_and_each_message_is_taken_once(
    broker: Broker, speakers: dict[str, Speaker], jobs: str
) -> None:
    """Real clients, pika and librdkafka's ShareConsumer, beside an MQTT member that holds what it was given."""
    taken: dict[str, list[bytes]] = {"amqp": [], "kafka": []}
    polled, stop = threading.Event(), threading.Event()
    consumer = confluent_kafka.ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": jobs})
    consumer.subscribe([jobs])

    def share() -> None:
        while not stop.is_set():
            for message in consumer.poll(0.1) or ():
                if message.error() is None:
                    taken["kafka"].append(message.value())
                    polled.set()
        consumer.close()

    def work(worker: AmqpWorker) -> None:
        while not stop.is_set():
            worker._connection.process_data_events(time_limit=0.05)
            if polled.is_set():  # who is pushed to is quicker than who polls, and would leave it nothing
                for method, body in worker.held:
                    taken["amqp"].append(body)
                    worker.channel.basic_ack(method.delivery_tag)
                worker.held.clear()
        worker.close()

    # The queue has this name and this filter, so the shared subscription joins it.
    mqtt = MqttWorker(broker, f"$share/{jobs}/{jobs}/#", 5)
    threads = [threading.Thread(target=share), threading.Thread(target=work, args=(AmqpWorker(broker, jobs, 5),))]
    for thread in threads:
        thread.start()
    said = publish(speakers, jobs, 150)
    by_mqtt = mqtt.take(5)
    eventually(
        lambda: sum(map(len, taken.values())) >= len(said) - 5, "AMQP and Kafka take all that MQTT does not hold"
    )
    for packet_id, _ in by_mqtt:
        mqtt.ack(packet_id)
    settled(broker, jobs, ready=0, unacked=0, dead=0)
    stop.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    mqtt.close()
    assert len(taken["amqp"]) >= 5
    assert taken["kafka"]
    assert sorted([*taken["amqp"], *taken["kafka"], *(value for _, value in by_mqtt)]) == sorted(said)


def test_what_one_protocol_releases_another_gets_with_its_attempts(
    broker: Broker, speakers: dict[str, Speaker], jobs: str
) -> None:
    speakers["mqtt"].say(Message(f"{jobs}/0", b"job"))
    amqp = AmqpWorker(broker, jobs, 1)
    [(method, body)] = amqp.take(1)
    assert (body, method.redelivered) == (b"job", False)
    amqp.channel.basic_cancel(amqp.channel.consumer_tags[0])
    amqp.channel.basic_nack(method.delivery_tag, requeue=True)
    amqp.settled()
    with ValueMember(broker, jobs, jobs) as kafka:
        [held] = kafka.hold()
        assert (held.value, held.count) == (b"job", 2)
        assert kafka.settle_one(held, RELEASE) == 0
    mqtt = MqttWorker(broker, f"$queue/{jobs}", 5)
    [(packet_id, value)] = mqtt.take(1)
    assert (value, mqtt.failed_before()) == (b"job", [2])
    mqtt.ack(packet_id)
    mqtt.settled()
    settled(broker, jobs, ready=0, unacked=0, dead=0)
    amqp.close()
    mqtt.close()


def test_attempts_belong_to_the_queue_and_dead_letters_stay_in_it(
    broker: Broker, speakers: dict[str, Speaker], jobs: str
) -> None:
    """One attempt in each protocol, three in all: then it is dead, wherever it failed."""
    speakers["kafka"].say(Message(f"{jobs}/0", b"poison"))
    amqp = AmqpWorker(broker, jobs, 1)
    [(method, body)] = amqp.take(1)
    assert (body, method.redelivered) == (b"poison", False)
    amqp.channel.basic_cancel(amqp.channel.consumer_tags[0])
    amqp.channel.basic_reject(method.delivery_tag, requeue=True)
    amqp.settled()
    amqp.close()
    mqtt = MqttWorker(broker, f"$queue/{jobs}", 1)
    [(_, value)] = mqtt.take(1)
    assert (value, mqtt.failed_before()) == (b"poison", [1])
    mqtt.close()  # lost connection
    with ValueMember(broker, jobs, jobs) as kafka:
        [held] = kafka.hold()
        assert (held.value, held.count) == (b"poison", 3)
        assert kafka.settle_one(held, RELEASE) == 0
        assert kafka.take(wait_ms=200) == []
    settled(broker, jobs, ready=0, unacked=0, dead=1)
    [row] = [json.loads(line) for line in mainstem(broker, "queue", "dead", jobs, "--json").splitlines()]
    assert (row["reason"], row["attempts"], row["value"]) == ("delivery_limit", 3, "poison")


def test_rejecting_means_the_same_in_all_and_redriving_copies_nothing(
    broker: Broker, speakers: dict[str, Speaker], jobs: str
) -> None:
    amqp, mqtt = AmqpWorker(broker, jobs, 1), MqttWorker(broker, f"$queue/{jobs}", 1)
    publish(speakers, jobs, 3)
    [(method, by_amqp)], [(packet_id, by_mqtt)] = amqp.take(1), mqtt.take(1)
    with ValueMember(broker, jobs, jobs) as kafka:
        [held] = kafka.hold()
        assert kafka.settle_one(held, REJECT) == 0
    amqp.channel.basic_cancel(amqp.channel.consumer_tags[0])
    amqp.channel.basic_reject(method.delivery_tag, requeue=False)
    amqp.settled()
    mqtt.ack(packet_id, REJECTED_BY_MQTT)
    mqtt.settled()
    mqtt.close()
    settled(broker, jobs, ready=0, unacked=0, dead=3)
    listed = http(broker, "GET", f"/v1/queues/{jobs}/dead")["items"]
    assert [row["reason"] for row in listed] == ["rejected"] * 3
    jobs_of_each = sorted(value.decode() for value in (by_amqp, by_mqtt, held.value))
    assert sorted(row["value"] for row in listed) == jobs_of_each == ["job 0", "job 1", "job 2"]
    before = ends(broker)
    assert "3 messages" in mainstem(broker, "queue", "redrive", jobs)
    settled(broker, jobs, ready=3, dead=0)
    assert ends(broker) == before
    again = AmqpWorker(broker, jobs, 3)
    assert sorted(body for _, body in again.take(3)) == [b"job 0", b"job 1", b"job 2"]
    again.close()
    amqp.close()


def test_one_dead_letter_is_redriven_by_its_position(broker: Broker, speakers: dict[str, Speaker], jobs: str) -> None:
    publish(speakers, jobs, 2)
    with ValueMember(broker, jobs, jobs) as kafka:
        rejected = kafka.hold()
        for held in rejected:
            assert kafka.settle_one(held, REJECT) == 0
        first, second = http(broker, "GET", f"/v1/queues/{jobs}/dead")["items"]
        assert {first["value"], second["value"]} == {held.value.decode() for held in rejected} == {"job 0", "job 1"}
        assert "1 message of" in mainstem(broker, "queue", "redrive", jobs, "--position", str(first["position"]))
        assert [held.value.decode() for held in kafka.hold()] == [first["value"]]
        [left] = http(broker, "GET", f"/v1/queues/{jobs}/dead")["items"]
        assert left == second
    settled(broker, jobs, dead=1)


def test_a_lock_that_expires_gives_the_message_to_another_protocol(
    broker: Broker, speakers: dict[str, Speaker], jobs: str
) -> None:
    speakers["amqp"].say(Message(f"{jobs}/0", b"job"))
    with ValueMember(broker, jobs, jobs) as kafka:
        [held] = kafka.hold()
        assert held.value == b"job"
        amqp = AmqpWorker(broker, jobs, 1)
        [(method, body)] = amqp.take(1)  # after the queue's own lock of a second, not the group's thirty
        assert (body, method.redelivered) == (b"job", True)
        assert kafka.settle_one(held, ACCEPT) == 121  # it no longer holds it
        amqp.channel.basic_ack(method.delivery_tag)
        amqp.settled()
        settled(broker, jobs, ready=0, unacked=0, dead=0)
        amqp.close()


def ends(broker: Broker) -> list[tuple[int, int]]:
    """Where the logs end that hold records of topics: nothing was appended if it stays there."""
    name = f"all-{uuid.uuid4().hex[:6]}"
    parts = http(broker, "POST", "/v1/views", {"name": name, "filter": "#"})["partitions"]
    http(broker, "DELETE", f"/v1/views/{name}")
    return [(part["log"], part["records"]) for part in parts]

"""A real file system without a free block under a whole broker: new things are refused in each protocol's words, what
is there is served, also after a stop and a start, and deleting makes room again."""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pika
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from mainstem.testing.power_cut import PowerCutMount, why_not
from mainstem.testing.process import BrokerProcess

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")

DEADLINE_S = 30.0
BULK = 4 << 20


class SmallDisk(BrokerProcess):
    """Refuses only where it must: the mark for publishes is as low as it can be."""

    def __init__(self, mount: Path) -> None:
        super().__init__(mount / "data", "data.space_low_bytes=0")
        self.log_path = mount.parent / "broker.log"
        self._filler = mount / "filler"

    def fill(self) -> None:
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * size)
            os.fsync(file.fileno())

    def empty(self) -> None:
        self._filler.unlink()

    @property
    def kafka(self) -> dict[str, str]:
        return {"bootstrap.servers": f"{self.host}:{self.kafka_port}"}

    def create_topic(self, name: str) -> None:
        admin = AdminClient(self.kafka)
        admin.create_topics([NewTopic(name, 2)], request_timeout=DEADLINE_S)[name].result()

    def delete_topic(self, name: str) -> None:
        admin = AdminClient(self.kafka)
        admin.delete_topics([name], request_timeout=DEADLINE_S)[name].result()

    def produce(self, name: str, size: int) -> None:
        producer = Producer({**self.kafka, "partitioner": "consistent"})
        for _ in range(size >> 17):
            producer.produce(name, os.urandom(1 << 17), b"key")
        assert producer.flush(DEADLINE_S) == 0

    def consume(self, name: str) -> bytes | None:
        consumer = Consumer({**self.kafka, "group.id": "g", "enable.auto.commit": False})
        consumer.assign([TopicPartition(name, partition, 0) for partition in (0, 1)])
        try:
            message = consumer.poll(DEADLINE_S)
            assert message is not None and message.error() is None
            value = message.value()
            return value if isinstance(value, bytes) else None
        finally:
            consumer.close()

    def declare_queue(self, name: str) -> None:
        connection = pika.BlockingConnection(pika.ConnectionParameters(self.host, self.amqp_port))
        connection.channel().queue_declare(name, durable=True)
        connection.close()

    def post_topic(self, name: str) -> int:
        body = json.dumps({"name": name, "settings": {"layout": "dedicated"}}).encode()
        url = f"http://{self.host}:{self.http_port}/v1/topics"
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def subscribe(self, client_id: str) -> bool:
        """As a session that lasts: whether the broker kept it."""
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5)
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        outcome: list[bool] = []

        def connected(one: mqtt.Client, _data: object, _flags: object, reason: object, _: object) -> None:
            if getattr(reason, "is_failure", True):
                outcome.append(False)
            else:
                one.subscribe("a/#", 1)

        def subscribed(_one: mqtt.Client, _data: object, _id: int, reasons: list[object], _: object) -> None:
            outcome.append(not any(getattr(reason, "is_failure", True) for reason in reasons))

        client.on_connect, client.on_subscribe = connected, subscribed
        client.on_disconnect = lambda *_: outcome.append(False)
        client.connect(self.host, self.mqtt_port, properties=properties)
        client.loop_start()
        until(lambda: bool(outcome))
        client.loop_stop()
        client.disconnect()
        return outcome[0]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with PowerCutMount(tmp_path, size_mib=64) as mount, SmallDisk(mount.path) as broker:
        yield broker


def check_that_everything_new_is_refused(disk: SmallDisk) -> None:
    with pytest.raises(KafkaException, match="KAFKA_STORAGE_ERROR"):
        disk.create_topic("refused-by-kafka")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="RESOURCE_ERROR"):
        disk.declare_queue("refused-by-amqp")
    assert disk.post_topic("refused-by-http") == 507
    assert disk.running


def check_that_everything_new_is_taken(disk: SmallDisk, suffix: str) -> None:
    disk.create_topic(f"kafka-{suffix}")
    disk.declare_queue(f"amqp-{suffix}")
    assert disk.post_topic(f"http-{suffix}") in (200, 201)
    assert disk.subscribe(f"mqtt-{suffix}")


def test_a_full_disk_refuses_what_is_new_and_takes_it_again_once_there_is_room(disk: SmallDisk) -> None:
    check_that_everything_new_is_taken(disk, "before")
    disk.fill()
    check_that_everything_new_is_refused(disk)
    sessions = 0
    while disk.subscribe(f"session-{sessions}"):  # into blocks reserved ahead, until they are used up
        sessions += 1
        disk.fill()
        assert sessions < 1000
    assert disk.running
    disk.empty()
    until(lambda: disk.post_topic("room") in (200, 201))
    check_that_everything_new_is_taken(disk, "after")
    assert disk.stop() == 0


def test_a_broker_starts_on_a_full_disk_serves_and_deletes(disk: SmallDisk) -> None:
    disk.create_topic("bulk")
    disk.create_topic("kept")
    disk.produce("bulk", BULK)
    disk.produce("kept", 1 << 17)
    kept = disk.consume("kept")
    until((disk.data / "ballast").exists)
    disk.kill()
    disk.fill()
    disk.start()
    check_that_everything_new_is_refused(disk)
    assert disk.consume("kept") == kept
    assert disk.stop() == 0
    disk.fill()
    disk.start()
    disk.delete_topic("bulk")
    until(lambda: disk.post_topic("room") in (200, 201))
    assert disk.consume("kept") == kept

"""Old data lies far away, two seconds a read: every protocol reads all of it, and the loop goes on for everyone else."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pika
import pytest
from confluent_kafka import Consumer, Producer

from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.testing import Broker
from mainstem.testing.away_engine import AwayEngine, move_away
from tests.protocol.mqtt.raw import Raw

READ_S = 2.0
STALL_S_MAX = 1.0  # half a read: a loop that waits for one is caught, a busy machine is not
DEADLINE_S = 60.0
COUNT = 20


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(engine="segment") as broker:
        yield broker


class Heartbeat:
    """The longest time that the broker's loop did not run."""

    def __init__(self, broker: Broker) -> None:
        assert broker.loop is not None
        self._loop, self._last, self.longest_s, self._on = broker.loop, 0.0, 0.0, True
        self._loop.call_soon_threadsafe(self._beat)

    def _beat(self) -> None:
        now = time.monotonic()
        if self._last:
            self.longest_s = max(self.longest_s, now - self._last)
        self._last = now
        if self._on:
            self._loop.call_later(0.01, self._beat)

    def stop(self) -> float:
        self._on = False
        return self.longest_s


def on_loop(broker: Broker, call: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return call()

    assert broker.loop is not None
    return asyncio.run_coroutine_threadsafe(run(), broker.loop).result(DEADLINE_S)


def move_all_away(broker: Broker) -> list[AwayEngine]:
    assert broker.app is not None
    return [move_away(log, READ_S) for log in broker.app.broker.logs.by_id.values()]


def read_kafka(broker: Broker, topic: str) -> list[bytes]:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": uuid.uuid4().hex}
    consumer, found = Consumer({**settings, "auto.offset.reset": "earliest"}), []
    consumer.subscribe([topic])
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < COUNT and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value())
    consumer.close()
    return found


def messages(client: Raw) -> list[bytes]:
    client.socket.settimeout(DEADLINE_S)
    return [client.message().payload for _ in range(COUNT)]


def read_mqtt(broker: Broker, client_id: str) -> list[bytes]:
    with Raw.connected(broker.mqtt_port, client_id, clean=False) as client:
        return messages(client)


def read_stream(broker: Broker, topic: str) -> list[bytes]:
    with Raw.connected(broker.mqtt_port, version=5) as client:
        earliest = {Property.USER_PROPERTY: [(b"stream-offset", b"earliest")]}
        client.subscribe((f"$stream/{topic}", 1), properties=earliest)
        return messages(client)


def read_amqp(broker: Broker, queue: str) -> list[bytes]:
    found: list[bytes] = []
    with pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=5)
        for method, _, body in channel.consume(queue, inactivity_timeout=DEADLINE_S):
            if method is None:
                break
            found.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(found) == COUNT:
                break
    return found


def read_http(broker: Broker, topic: str) -> list[bytes]:
    asked = {"topic": topic, "from": "earliest", "limit": COUNT}
    answer = httpx.get(f"{broker.http_url}/v1/messages", params=asked, timeout=DEADLINE_S)
    answer.raise_for_status()
    return [row["value"].encode() for row in answer.json()["items"]]


def publish_everything(broker: Broker) -> list[bytes]:
    """The same values into a topic of the shared log, a Kafka topic, an absent session and a queue."""
    values = [b"%d" % n for n in range(COUNT)]
    with Raw.connected(broker.mqtt_port, "absent", clean=False) as client:
        client.subscribe(("old/mqtt", 1))
    with pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.queue_declare("old-queue", durable=True)
        channel.confirm_delivery()
        for value in values:
            channel.basic_publish("", "old-queue", value)
    with Raw.connected(broker.mqtt_port) as client:
        for value in values:
            client.publish("old/mqtt", value, qos=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce("old-kafka", value)
    assert producer.flush(DEADLINE_S) == 0
    return values


def test_every_protocol_reads_what_lies_far_away_and_the_loop_goes_on(broker: Broker) -> None:
    values = publish_everything(broker)
    engines = on_loop(broker, lambda: move_all_away(broker))
    heartbeat = Heartbeat(broker)
    with ThreadPoolExecutor(5) as threads:
        reading = {
            "Kafka": threads.submit(read_kafka, broker, "old-kafka"),
            "MQTT, an absent session": threads.submit(read_mqtt, broker, "absent"),
            "MQTT, a stream": threads.submit(read_stream, broker, "old/mqtt"),
            "AMQP": threads.submit(read_amqp, broker, "old-queue"),
            "HTTP": threads.submit(read_http, broker, "old/mqtt"),
        }
        found = {who: future.result(2 * DEADLINE_S) for who, future in reading.items()}
    assert found == dict.fromkeys(reading, values)
    assert sum(engine.reads for engine in engines) > 0, "nothing was read from far away"
    assert [engine.mistakes for engine in engines] == [0] * len(engines)
    assert heartbeat.stop() < STALL_S_MAX

"""A quiet client of AMQP or Kafka beside a flood of its own protocol: here, on RabbitMQ and on Apache Kafka.

The quiet one publishes a hundred times a second and waits for each confirm or ack; latency counts from when it was due. All
servers run on one core, the load on the other. Confirms and acks are those of durable messages here and on RabbitMQ;
Apache Kafka acknowledges what is in the page cache.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pika

import bench.amqp
import bench.kafka
from bench.noise_load import Kafka
from bench.standstill import Wait
from mainstem.codec.batch import BatchBuilder

PERIOD_S = 0.01
TOPIC = "quiet"
Publish = Callable[[], None]


def waits_of(publish: Publish, seconds: float) -> list[Wait]:
    found, began = list[Wait](), time.monotonic()
    for number in range(int(seconds / PERIOD_S)):
        due = began + number * PERIOD_S
        time.sleep(max(0.0, due - time.monotonic()))
        publish()
        found.append(Wait(due, (time.monotonic() - due) * 1000))
    return found


@contextlib.contextmanager
def amqp_client(port: int) -> Iterator[Publish]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
    channel = connection.channel()
    channel.queue_declare(TOPIC, durable=True)
    channel.confirm_delivery()
    lasting = pika.BasicProperties(delivery_mode=2)
    yield lambda: channel.basic_publish("", TOPIC, b"0123456789abcdef", lasting)
    connection.close()


@contextlib.contextmanager
def kafka_client(port: int) -> Iterator[Publish]:
    client = Kafka(port)
    client.create(TOPIC)
    builder = BatchBuilder()
    builder.add(b"k", b"0123456789abcdef", (), 1)
    batch = bytes(builder.seal_batch(0))
    yield lambda: client.produce(TOPIC, batch)


@contextlib.contextmanager
def rabbitmq() -> Iterator[int]:
    with bench.amqp.rabbitmq() as server:
        yield server.address.port


@contextlib.contextmanager
def ours_by_amqp() -> Iterator[int]:
    with bench.amqp.mainstem() as server:
        yield server.address.port


@contextlib.contextmanager
def kafka() -> Iterator[int]:
    with bench.kafka.kafka() as server:
        yield server.port


@contextlib.contextmanager
def ours_by_kafka() -> Iterator[int]:
    with bench.kafka.mainstem("sync") as server:
        yield server.port


# (who, the server, the quiet client, the noise and the port it needs)
SERVERS = (
    ("Mainstem", ours_by_amqp, amqp_client, "AMQP flood", "amqp"),
    ("RabbitMQ", rabbitmq, amqp_client, "AMQP flood", "amqp"),
    ("Mainstem", ours_by_kafka, kafka_client, "Kafka 1 MB batches", "kafka"),
    ("Apache Kafka", kafka, kafka_client, "Kafka 1 MB batches", "kafka"),
)

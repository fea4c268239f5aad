"""What a cluster holds, read by the clients of each protocol, to be judged by the ledgers."""

from __future__ import annotations

import asyncio
import contextlib
import time

import nats
import pika
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.cluster.load import (
    KAFKA_TOPIC,
    MQTT_TOPIC,
    QUEUE,
    STREAM,
    AmqpPublisher,
    KafkaPublisher,
    MqttPublisher,
    NatsPublisher,
    Publisher,
    kafka_login,
)

QUIET_S = 1.5
READS_MAX, AGAIN_S = 5, 1.0
HOST = "127.0.0.1"


def judge(publishers: list[Publisher], ports: dict[str, int], host: str = HOST) -> dict[str, dict[str, list[str]]]:
    """What was wrong, by protocol. MQTT clients send again what was not answered: it may be there twice."""
    found = {}
    for one in publishers:
        verdict = one.ledger.judge(_read_again(one, ports, host))
        print(
            one.name, one.ledger.counts, {kind: len(getattr(verdict, kind)) for kind in verdict.__slots__}, flush=True
        )
        problems = verdict.problems(repeats_allowed=isinstance(one, MqttPublisher))
        if problems:
            found[one.name] = problems
    return found


def _read_again(publisher: Publisher, ports: dict[str, int], host: str) -> list[bytes]:
    """From the beginning where the connection ends meanwhile: a cell may be moved while it is read."""
    for _ in range(READS_MAX - 1):
        with contextlib.suppress(pika.exceptions.AMQPError, nats.errors.Error, OSError):
            return _read(publisher, ports, host)
        time.sleep(AGAIN_S)
    return _read(publisher, ports, host)


def _read(publisher: Publisher, ports: dict[str, int], host: str) -> list[bytes]:
    if isinstance(publisher, AmqpPublisher):
        return read_queue(ports["amqp"], host, publisher)
    if isinstance(publisher, NatsPublisher):
        return asyncio.run(read_stream(ports["nats"], host, publisher))
    return [value for _, value in read_topic(ports["kafka"], topic_of(publisher), host, publisher)]


def topic_of(publisher: Publisher) -> str:
    """Where a Kafka client reads what it published, "" for a queue or a stream."""
    if isinstance(publisher, KafkaPublisher):
        return KAFKA_TOPIC
    return MQTT_TOPIC.replace("/", ".") if isinstance(publisher, MqttPublisher) else ""


def read_topic(port: int, topic: str, host: str = HOST, by: Publisher | None = None) -> list[tuple[int, bytes]]:
    """All of its one partition, by Kafka: offsets and values."""
    servers = {"bootstrap.servers": f"{host}:{port}", "group.id": "judge", "log_level": 0}
    servers |= kafka_login(by) if by is not None else {}
    consumer = Consumer({**servers, "enable.auto.commit": False, "enable.partition.eof": True})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)  # others may be writing
        consumer.assign([TopicPartition(topic, 0, 0)])
        records: list[tuple[int, bytes]] = []
        while (message := consumer.poll(20)) is not None:
            if message.error() is None and message.offset() >= end:
                return records
            if message.error() is None:
                records.append((message.offset(), message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return records
        raise AssertionError(f"no end of {topic} was told")
    finally:
        consumer.close()


def read_queue(port: int, host: str = HOST, by: Publisher | None = None) -> list[bytes]:
    given = pika.ConnectionParameters(host, port)
    if by is not None and by.namespace:
        given.virtual_host, given.credentials = by.namespace, pika.PlainCredentials(by.user, by.password)
    connection = pika.BlockingConnection(given)
    try:
        channel, payloads = connection.channel(), []
        for method, _, body in channel.consume(QUEUE, inactivity_timeout=QUIET_S):
            if method is None:
                return payloads
            payloads.append(body)
        return payloads
    finally:
        if connection.is_open:
            connection.close()


async def read_stream(port: int, host: str = HOST, by: Publisher | None = None) -> list[bytes]:
    login = {"user": by.user, "password": by.password} if by is not None and by.namespace else {}
    client = await nats.connect(f"nats://{host}:{port}", **login)
    try:
        js = client.jetstream()
        total = (await js.stream_info(STREAM)).state.messages
        subscription = await js.subscribe("events.>", ordered_consumer=True)
        return [(await subscription.next_msg(timeout=10)).data for _ in range(total)]
    finally:
        await client.close()

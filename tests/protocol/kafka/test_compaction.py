"""Compacted topics: the last record of each key stays at its offset, tombstones go, clients read on over the gaps."""

from __future__ import annotations

import asyncio
from typing import Any

from confluent_kafka import TopicPartition

from mainstem.testing import Broker
from tests.protocol.kafka.clients import consumer, create_topic, producer, read_all, take, unique


def on_loop(broker: Broker, work: Any) -> Any:
    """Run a coroutine on the broker's own loop."""
    assert broker.loop is not None
    return asyncio.run_coroutine_threadsafe(work, broker.loop).result(60)


async def seal_and_compact(broker: Broker, topic: str) -> None:
    assert broker.app is not None
    inner = broker.app.broker
    namespace = inner.namespace("/")
    found = namespace.topics[topic.encode()]
    for partition in found.partitions:
        partition.log.engine.roll()
        await inner.maintenance.keep(namespace, partition.log, found.policy)


def test_the_last_record_of_each_key_stays(broker: Broker) -> None:
    topic = create_topic(broker, unique("compact"), cleanup_policy="compact", delete_retention_ms="0")
    sender = producer(broker)
    for n in range(60):
        sender.produce(topic, b"value %d" % n, key=b"key %d" % (n % 3))
        if n % 10 == 9:
            sender.flush(10)
    sender.produce(topic, None, key=b"key 0")
    assert sender.flush(10) == 0
    on_loop(broker, seal_and_compact(broker, topic))
    on_loop(broker, seal_and_compact(broker, topic))
    sender.produce(topic, b"after", key=b"key 9")
    sender.flush(10)
    reader = consumer(broker)
    reader.assign([TopicPartition(topic, 0, 0)])
    found = []
    while not found or found[-1].value() != b"after":
        found += take(reader, 1)
    reader.close()
    kept = [(message.key(), message.value()) for message in found if message.value() is not None]
    assert kept == [(b"key 1", b"value 58"), (b"key 2", b"value 59"), (b"key 9", b"after")]
    assert [message.offset() for message in found][-1] == 61


def test_reading_from_inside_a_gap_goes_on_with_what_follows(broker: Broker) -> None:
    topic = create_topic(broker, unique("gap"), cleanup_policy="compact")
    sender = producer(broker)
    for n in range(20):
        sender.produce(topic, b"%d" % n, key=b"one key")
        sender.flush(10)
    on_loop(broker, seal_and_compact(broker, topic))
    assert read_all(broker, topic, 1, offset=5)[0].value() == b"19"

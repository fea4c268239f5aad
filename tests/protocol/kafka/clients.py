"""What the Kafka tests say again and again, in the words of confluent-kafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from mainstem.testing.broker import Endpoints

DEADLINE_S = 30.0


def unique(stem: str) -> str:
    return f"{stem}-{uuid.uuid4().hex[:8]}"


def producer(broker: Endpoints, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, **dotted(settings)})


def consumer(broker: Endpoints, **settings: Any) -> Consumer:
    defaults = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": unique("group"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    return Consumer({**defaults, **dotted(settings)})


def admin(broker: Endpoints) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def create_topic(broker: Endpoints, name: str, partitions: int = 1, **config: str) -> str:
    client = admin(broker)
    futures = client.create_topics([NewTopic(name, partitions, 1, config=dotted(config))])
    for future in futures.values():
        future.result(DEADLINE_S)
    return name


def send(broker: Endpoints, topic: str, values: list[bytes], *, partition: int = -1, **settings: Any) -> None:
    """Produce and wait until all are acked."""
    errors: list[Any] = []
    sender = producer(broker, **settings)
    for value in values:
        kwargs = {"partition": partition} if partition >= 0 else {}
        sender.produce(topic, value, on_delivery=lambda error, _: errors.append(error), **kwargs)
    assert sender.flush(DEADLINE_S) == 0
    assert errors == [None] * len(values)


def take(source: Consumer, count: int, deadline_s: float = DEADLINE_S) -> list[Any]:
    """The next `count` messages; fails when they do not come in time."""
    found: list[Any] = []
    deadline = time.monotonic() + deadline_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} messages came"
        message = source.poll(0.5)
        if message is None:
            continue
        assert message.error() is None, message.error()
        found.append(message)
    return found


def read_all(
    broker: Endpoints, topic: str, count: int, *, partition: int = 0, offset: int = 0, **settings: Any
) -> list[Any]:
    source = consumer(broker, **settings)
    try:
        source.assign([TopicPartition(topic, partition, offset)])
        return take(source, count)
    finally:
        source.close()


def eventually(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)

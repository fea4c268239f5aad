"""One broker process for what needs no killing, and records of every kind in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from mainstem.testing.process import BrokerProcess

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

_names = itertools.count()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("ask") / "data") as process:
        yield process


@pytest.fixture
def topic() -> str:
    """A name of its own for each test: they share a broker."""
    return f"q{next(_names)}"


def produce(broker: Any, records: Iterable[tuple[str, bytes | None, bytes | None, int]], **settings: Any) -> None:
    """(topic in Kafka's spelling, key, value, time in ms) of each, by Kafka."""
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    for name, key, value, time_ms in records:
        while True:
            try:
                producer.produce(name, value, key=key, timestamp=time_ms)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(30) == 0


def publish(broker: Any, messages: Iterable[tuple[str, bytes]]) -> None:
    """By MQTT, into the namespace's shared log."""
    import paho.mqtt.client as mqtt

    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.max_inflight_messages_set(1000)
    client.connect(broker.host, broker.mqtt_port)
    client.loop_start()
    waiting = [client.publish(name, value, qos=1) for name, value in messages]
    for one in waiting:
        one.wait_for_publish(30)
    client.disconnect()
    client.loop_stop()

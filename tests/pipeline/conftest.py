"""One Spark for the whole run (it takes seconds to start), one broker process for what needs no killing."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mainstem.testing.process import BrokerProcess

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_names = itertools.count()
MQTT_WAITING_MAX = 20_000  # packet identifiers are 16 bits


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from mainstem_pipeline.session import SparkOptions, start_session

    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.stopTimeout": "30s",
    }
    session = start_session(
        SparkOptions(master="local[2]", log=folder / "spark.log", settings=settings, fast_start=True)
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the test may kill."""
    with BrokerProcess(tmp_path / "data") as process:
        yield process


@pytest.fixture
def topic() -> str:
    """A name of its own for each test: they share a broker."""
    return f"t{next(_names)}"


def eventually(check: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Poll until `check` answers something true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = check()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def produce(
    broker: BrokerProcess,
    topic: str,
    values: Iterable[bytes | None],
    *,
    key: Callable[[int], bytes | None] = lambda index: b"k%d" % index,
    headers: list[tuple[str, bytes]] | None = None,
    time_ms: Callable[[int], int] | None = None,
    **settings: Any,
) -> int:
    """Write with a real Kafka client, acknowledged; returns how many."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5, **settings})
    failed: list[str] = []
    count = 0
    for index, value in enumerate(values):
        options: dict[str, Any] = {"headers": headers} if headers else {}
        if time_ms is not None:
            options["timestamp"] = time_ms(index)
        while True:
            try:
                producer.produce(
                    topic, value, key(index), on_delivery=lambda e, m: failed.append(str(e)) if e else None, **options
                )
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
    assert producer.flush(60) == 0
    assert not failed
    return count


def publish(broker: BrokerProcess, messages: Iterable[tuple[str, bytes]], **options: Any) -> int:
    """Write with a real MQTT client at QoS 1, acknowledged; returns how many."""
    import paho.mqtt.client as mqtt

    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.max_inflight_messages_set(1000)
    client.max_queued_messages_set(0)
    client.connect(broker.host, broker.mqtt_port)
    client.loop_start()
    count, rest = 0, iter(messages)
    while sent := [client.publish(name, payload, qos=1, **options) for name, payload in islice(rest, MQTT_WAITING_MAX)]:
        for one in sent:
            one.wait_for_publish(60)
            assert one.is_published()
        count += len(sent)
    client.disconnect()
    client.loop_stop()
    return count


def create_topic(broker: BrokerProcess, topic: str, partitions: int = 1, **config: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values():
        future.result(30)


def delete_topic(broker: BrokerProcess, topic: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_topics([topic]).values():
        future.result(30)


def read(spark: SparkSession, broker: BrokerProcess, **options: str) -> DataFrame:
    return spark.read.format("mainstem").option("url", broker.http_url).options(**options).load()


def stream(spark: SparkSession, broker: BrokerProcess, **options: str) -> DataFrame:
    return spark.readStream.format("mainstem").option("url", broker.http_url).options(**options).load()


def values_of(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row[0]) for row in frame.select("value").collect())

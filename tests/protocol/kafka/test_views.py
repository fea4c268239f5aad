"""Topics born in other protocols, and views, as Kafka topics: sparse offsets, markers over stretches without a match."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import KafkaError, TopicPartition
from kafka import KafkaConsumer
from kafka.structs import TopicPartition as KpTopicPartition

from mainstem.testing import Broker
from tests.protocol.kafka.clients import consumer, create_topic, eventually, producer, read_all, send, take, unique
from tests.protocol.kafka.raw import RawClient


@pytest.fixture(scope="module")
def device(broker: Broker) -> Iterator[mqtt.Client]:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect(broker.host, broker.mqtt_port)
    client.loop_start()
    yield client
    client.disconnect()
    client.loop_stop()


def publish(device: mqtt.Client, topic: str, *values: bytes) -> None:
    for sent in [device.publish(topic, value, qos=1) for value in values]:
        sent.wait_for_publish(10)


def make_view(broker: Broker, name: str, topic_filter: str, where: str = "") -> str:
    """On the broker's own loop, as its HTTP API does."""
    app = broker.app
    assert app is not None
    namespace = app.broker.namespace("/")
    done: list[Any] = []

    def make() -> None:
        done.append(app.broker.create_view(namespace, name.encode(), topic_filter.encode(), where=where))

    assert broker.loop is not None
    broker.loop.call_soon_threadsafe(make)
    eventually(lambda: bool(done), "the view is made")
    return name


def test_an_mqtt_topic_is_read_by_its_kafka_name(broker: Broker, device: mqtt.Client) -> None:
    room = unique("room")
    publish(device, f"home/{room}/temp", b"20", b"21")
    publish(device, f"home/{room}/other", b"x")
    publish(device, f"home/{room}/temp", b"22")
    found = read_all(broker, f"home.{room}.temp", 3)
    assert [message.value() for message in found] == [b"20", b"21", b"22"]
    assert found[0].key() == f"home/{room}/temp".encode()
    offsets = [message.offset() for message in found]
    assert offsets == sorted(offsets)


def test_all_topics_lists_dedicated_topics_and_views_never_device_topics(broker: Broker, device: mqtt.Client) -> None:
    name = unique("fleet")
    publish(device, f"{name}/1/temp", b"1")
    view = make_view(broker, f"view-{name}", f"{name}/+/temp")
    own = create_topic(broker, unique("own"))
    listed = consumer(broker)
    topics = set(listed.list_topics(timeout=10).topics)
    listed.close()
    assert {view, own} <= topics
    assert f"{name}.1.temp" not in topics


def test_a_view_reads_history_and_what_comes_with_the_topic_in_a_header(broker: Broker, device: mqtt.Client) -> None:
    name = unique("fleet")
    publish(device, f"{name}/1/temp", b"old-1")
    publish(device, f"{name}/2/temp", b"old-2")
    publish(device, f"{name}/2/speed", b"not this")
    view = make_view(broker, f"v{name}", f"{name}/+/temp")
    reader = consumer(broker)
    reader.subscribe([view])
    early = take(reader, 2)
    publish(device, f"{name}/3/temp", b"new-3")
    late = take(reader, 1)
    reader.commit(asynchronous=False)
    reader.close()
    assert [m.value() for m in early + late] == [b"old-1", b"old-2", b"new-3"]
    assert [dict(m.headers())["ms-topic"] for m in early] == [f"{name}/1/temp".encode(), f"{name}/2/temp".encode()]


def test_a_view_refuses_to_be_written(broker: Broker, device: mqtt.Client) -> None:
    name = unique("readonly")
    publish(device, f"{name}/1", b"1")
    view = make_view(broker, f"v{name}", f"{name}/+")
    errors: list[KafkaError] = []
    sender = producer(broker)
    sender.produce(view, b"v", on_delivery=lambda error, _: errors.append(error))
    sender.flush(10)
    assert [error.code() for error in errors] == [KafkaError.TOPIC_EXCEPTION]


def stretch(broker: Broker, device: mqtt.Client) -> tuple[str, int]:
    """A view with one match, a long stretch without, and one match more; and the slot that shows them."""
    name = unique("stretch")
    publish(device, f"{name}/yes", b"first")
    publish(device, f"{name}/no", *[b"noise"] * 300)
    publish(device, f"{name}/yes", b"second")
    publish(device, f"{name}/no", *[b"noise"] * 300)
    return make_view(broker, f"v{name}", f"{name}/yes"), 0


def position_moves_on(position: Any, last: int) -> None:
    """Beyond the last match, without a record: so that a commit does not scan the stretch again."""
    eventually(lambda: (position() or 0) > last + 250, "the position moves over what does not match")


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_librdkafka_steps_over_a_stretch_without_a_match(broker: Broker, device: mqtt.Client, level: str) -> None:
    view, slot = stretch(broker, device)
    reader = consumer(broker, isolation_level=level, fetch_wait_max_ms=100)
    at = TopicPartition(view, slot, 0)
    reader.assign([at])
    found = take(reader, 2)
    assert [m.value() for m in found] == [b"first", b"second"]
    for _ in range(10):  # markers come, records do not
        assert reader.poll(0.1) is None
    publish(device, view[1:] + "/yes", b"third")
    assert take(reader, 1)[0].value() == b"third"
    reader.close()


def test_kafka_python_steps_over_a_stretch_without_a_match(broker: Broker, device: mqtt.Client) -> None:
    view, slot = stretch(broker, device)
    at = KpTopicPartition(view, slot)
    for level in ("read_committed", "read_uncommitted"):
        reader = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, isolation_level=level, fetch_max_wait_ms=100)
        reader.assign([at])
        reader.seek(at, 0)
        found: list[Any] = []
        deadline = time.monotonic() + 20
        while len(found) < 2 and time.monotonic() < deadline:
            found += [m for ms in reader.poll(200).values() for m in ms]
        assert [m.value for m in found] == [b"first", b"second"]

        def position(reader: KafkaConsumer = reader) -> int:
            assert not reader.poll(100)
            return int(reader.position(at))

        position_moves_on(position, found[-1].offset)
        reader.close()


async def test_aiokafka_steps_over_a_stretch_without_a_match(broker: Broker, device: mqtt.Client) -> None:
    view, slot = stretch(broker, device)
    at = AioTopicPartition(view, slot)
    for level in ("read_committed", "read_uncommitted"):
        reader = AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, isolation_level=level, fetch_max_wait_ms=100
        )
        await reader.start()
        reader.assign([at])
        reader.seek(at, 0)
        found = [await reader.getone() for _ in range(2)]
        assert [m.value for m in found] == [b"first", b"second"]
        deadline = time.monotonic() + 20
        while await reader.position(at) <= found[-1].offset + 250 and time.monotonic() < deadline:
            assert not await reader.getmany(timeout_ms=100)
        assert await reader.position(at) > found[-1].offset + 250
        await reader.stop()


def test_a_dedicated_topic_gets_a_slot_of_the_view_when_it_appears(broker: Broker, device: mqtt.Client) -> None:
    name = unique("slots")
    publish(device, f"{name}/device", b"from the stem")
    view = make_view(broker, f"v{name}", f"{name}/#")
    listed = consumer(broker)
    before = len(listed.list_topics(view, timeout=10).topics[view].partitions)
    topic = create_topic(broker, f"{name}.kafka", 2)
    send(broker, topic, [b"from kafka"], partition=1)
    after = len(listed.list_topics(view, timeout=10).topics[view].partitions)
    listed.close()
    assert after == before + 2
    reader = consumer(broker)
    reader.subscribe([view])
    assert sorted(m.value() for m in take(reader, 2)) == [b"from kafka", b"from the stem"]
    reader.close()


def test_kafka_may_write_to_a_topic_that_devices_write_to(broker: Broker, device: mqtt.Client) -> None:
    name = unique("both")
    publish(device, f"{name}/x", b"from mqtt")
    send(broker, f"{name}.x", [b"from kafka"], enable_idempotence=True)
    publish(device, f"{name}/x", b"mqtt again")
    assert [m.value() for m in read_all(broker, f"{name}.x", 3)] == [b"from mqtt", b"from kafka", b"mqtt again"]


def test_a_transaction_moves_a_shared_topic_to_a_log_of_its_own(broker: Broker, device: mqtt.Client) -> None:
    name = unique("moved")
    publish(device, f"{name}/x", b"shared")
    sender = producer(broker, transactional_id=unique("id"))
    sender.init_transactions(10)
    sender.begin_transaction()
    sender.produce(f"{name}.x", b"in a transaction")
    sender.commit_transaction(10)
    publish(device, f"{name}/x", b"after")
    found = read_all(broker, f"{name}.x", 3, isolation_level="read_committed")
    assert [m.value() for m in found] == [b"shared", b"in a transaction", b"after"]


def test_a_waiting_fetch_does_not_return_for_what_does_not_match(broker: Broker, device: mqtt.Client) -> None:
    """Noise on the stem must not make view readers spin: one answer per max_wait, at most."""
    name = unique("quiet")
    publish(device, f"{name}/yes", b"1")
    view = make_view(broker, f"v{name}", f"{name}/yes")
    with RawClient(broker) as raw:
        end = raw.fetch(view, 0).responses[0].partitions[0].high_watermark
        began = time.monotonic()
        publish(device, f"{name}/no", b"noise")
        answer = raw.fetch(view, end, max_wait_ms=1_000).responses[0].partitions[0]
        assert time.monotonic() - began >= 0.9
        assert answer.error_code == 0

"""Records go in and come out as they were: acks, compressions, headers, keys, times, sizes, with each client."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import OFFSET_END, KafkaError, TopicPartition
from kafka import KafkaConsumer, KafkaProducer

from mainstem.protocols.kafka.messages import FetchRequest
from mainstem.testing import Broker
from tests.protocol.kafka.clients import (
    DEADLINE_S,
    admin,
    consumer,
    create_topic,
    producer,
    read_all,
    send,
    take,
    unique,
)
from tests.protocol.kafka.raw import RawClient, batch_of


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_each_level_of_acks_stores_the_record(broker: Broker, acks: str) -> None:
    topic = create_topic(broker, unique("acks"))
    send(broker, topic, [b"one", b"two"], acks=acks)
    assert [message.value() for message in read_all(broker, topic, 2)] == [b"one", b"two"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_each_compression_is_stored_as_sent_and_read_by_every_client(broker: Broker, codec: str) -> None:
    topic = create_topic(broker, unique("codec"))
    values = [b"a value that repeats itself, itself, itself %d" % n for n in range(200)]
    send(broker, topic, values, **{"compression_type": codec, "linger_ms": 50})
    assert [message.value() for message in read_all(broker, topic, 200)] == values
    reader = KafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest", consumer_timeout_ms=10_000
    )
    assert [next(reader).value for _ in range(200)] == values
    reader.close()


def test_headers_keep_order_duplicates_nulls_and_bytes(broker: Broker) -> None:
    topic = create_topic(broker, unique("headers"))
    headers = [("b", b"\x00\xff"), ("a", b""), ("b", b"again"), ("null", None)]
    sender = producer(broker)
    sender.produce(topic, b"v", key=b"\xff\xfe", headers=headers)
    sender.flush(10)
    (message,) = read_all(broker, topic, 1)
    assert message.headers() == headers
    assert message.key() == b"\xff\xfe"


def test_null_and_empty_keys_and_values_differ(broker: Broker) -> None:
    topic = create_topic(broker, unique("nulls"))
    sender = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    pairs: list[tuple[bytes | None, bytes | None]] = [(None, b"v"), (b"", b"v"), (b"k", None), (b"k", b"")]
    for key, value in pairs:
        sender.send(topic, value, key).get(10)
    sender.close()
    assert [(message.key(), message.value()) for message in read_all(broker, topic, 4)] == pairs


def test_timestamps_are_the_producers(broker: Broker) -> None:
    topic = create_topic(broker, unique("times"))
    sender = producer(broker)
    sender.produce(topic, b"v", timestamp=1_600_000_000_123)
    sender.flush(10)
    (message,) = read_all(broker, topic, 1)
    assert message.timestamp() == (1, 1_600_000_000_123)


def test_log_append_time_is_the_brokers(broker: Broker) -> None:
    topic = create_topic(broker, unique("append-time"), message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000) - 1
    sender = producer(broker, compression_type="lz4")
    sender.produce(topic, b"v", timestamp=1_600_000_000_123)
    sender.flush(10)
    (message,) = read_all(broker, topic, 1, check_crcs=True)
    kind, time_ms = message.timestamp()
    assert kind == 2
    assert before <= time_ms <= time.time() * 1000 + 1


def test_900_kilobytes_pass_and_more_than_the_limit_is_refused(broker: Broker) -> None:
    topic = create_topic(broker, unique("large"), max_message_bytes="1000000")
    large = bytes(900_000)
    send(broker, topic, [large])
    assert read_all(broker, topic, 1)[0].value() == large
    errors: list[KafkaError] = []
    sender = producer(broker, message_max_bytes=5_000_000)
    sender.produce(topic, bytes(1_200_000), on_delivery=lambda error, _: errors.append(error))
    sender.flush(20)
    assert [error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_a_batch_larger_than_the_fetch_limit_still_comes_whole(broker: Broker) -> None:
    topic = create_topic(broker, unique("kip74"))
    send(broker, topic, [bytes(200_000), b"after"])
    found = read_all(
        broker, topic, 2, **{"fetch_max_bytes": 1_000, "max_partition_fetch_bytes": 1_000, "message_max_bytes": 1_000}
    )
    assert [len(message.value()) for message in found] == [200_000, 5]


def test_a_fetch_waits_for_a_record_and_is_woken_by_it(broker: Broker) -> None:
    topic = create_topic(broker, unique("poll"))
    reader = consumer(broker, fetch_wait_max_ms=20_000)
    reader.assign([TopicPartition(topic, 0, OFFSET_END)])
    assert reader.poll(1) is None
    send(broker, topic, [b"wake up"])
    began = time.monotonic()
    assert take(reader, 1, deadline_s=10)[0].value() == b"wake up"
    assert time.monotonic() - began < 10  # far less than the wait it asked for
    reader.close()


@pytest.mark.parametrize("session_epoch", [-1, 0])
@pytest.mark.parametrize("offset", [0, 1])
def test_a_fetch_that_waits_is_told_when_its_topic_is_deleted(broker: Broker, offset: int, session_epoch: int) -> None:
    topic = create_topic(broker, unique("gone"))
    send(broker, topic, [b"v"])
    part = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=60_000, min_bytes=1 << 20, session_epoch=session_epoch)
    request.topics = [FetchRequest.FetchTopic(topic=topic, partitions=[part])]
    with RawClient(broker) as raw:
        raw.send("Fetch", 11, request)
        client = admin(broker)
        client.delete_topics([topic])[topic].result(DEADLINE_S)
        assert raw.receive("Fetch", 11).responses[0].partitions[0].error_code == 3


def test_reading_outside_the_log_follows_the_reset_policy(broker: Broker) -> None:
    topic = create_topic(broker, unique("range"))
    send(broker, topic, [b"0", b"1"])
    assert read_all(broker, topic, 1, offset=77)[0].value() == b"0"
    reader = consumer(broker, auto_offset_reset="error")
    reader.assign([TopicPartition(topic, 0, 77)])
    with pytest.raises(AssertionError, match=r"OFFSET_OUT_OF_RANGE|_AUTO_OFFSET_RESET"):
        take(reader, 1)
    reader.close()


def test_an_offset_of_a_topic_that_was_recreated_is_out_of_the_new_ones_range(broker: Broker) -> None:
    name = create_topic(broker, unique("again"))
    send(broker, name, [b"%d" % n for n in range(20)])
    old = [message.offset() for message in read_all(broker, name, 20)]
    client = admin(broker)
    client.delete_topics([name])[name].result(DEADLINE_S)
    create_topic(broker, name)
    send(broker, name, [b"new"])
    (message,) = read_all(broker, name, 1)
    assert message.value() == b"new" and message.offset() == 0
    for offset in (old[-1], old[-1] + 1):
        part = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(topics=[FetchRequest.FetchTopic(topic=name, partitions=[part])])
        with RawClient(broker) as raw:
            raw.send("Fetch", 11, request)
            assert raw.receive("Fetch", 11).responses[0].partitions[0].error_code == 1, "OFFSET_OUT_OF_RANGE"


async def test_aiokafka_writes_and_reads(broker: Broker) -> None:
    topic = create_topic(broker, unique("aio"), 3)
    sender = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True, compression_type="gzip"
    )
    await sender.start()
    results = await asyncio.gather(*[sender.send_and_wait(topic, b"%d" % n, partition=n % 3) for n in range(30)])
    await sender.stop()
    assert sorted((result.partition, result.offset) for result in results) == [
        (p, o) for p in range(3) for o in range(10)
    ]
    reader = AIOKafkaConsumer(topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    await reader.start()
    async with asyncio.timeout(20):
        values = sorted([int((await reader.getone()).value) for _ in range(30)])
    await reader.stop()
    assert values == list(range(30))


def test_kafka_python_writes_and_reads_many_partitions(broker: Broker) -> None:
    topic = create_topic(broker, unique("kp"), 4)
    sender = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all", linger_ms=5)
    for n in range(400):
        sender.send(topic, b"%d" % n, b"key-%d" % (n % 17))
    sender.flush(20)
    sender.close()
    reader = KafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest", consumer_timeout_ms=10_000
    )
    found: dict[bytes, list[int]] = {}
    for _ in range(400):
        message = next(reader)
        found.setdefault(message.key, []).append(int(message.value))
    reader.close()
    assert sum(map(len, found.values())) == 400
    assert all(values == sorted(values) for values in found.values())  # order holds per key


def test_a_bad_checksum_is_refused(broker: Broker) -> None:
    topic = create_topic(broker, unique("crc"))
    batch = bytearray(batch_of([b"v"]))
    batch[-1] ^= 1
    with RawClient(broker) as raw:
        assert raw.produce(topic, bytes(batch)).error_code == 2

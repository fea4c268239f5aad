"""Batches that inflate to thousands of times their size, or are made of thousands of pieces: only their sender waits."""

from __future__ import annotations

import gzip
import struct
import threading
from typing import Any

import pytest

from mainstem.codec.batch import BatchBuilder, crc32c
from mainstem.codec.compression import deflate
from mainstem.protocols.kafka.messages import CreateTopicsRequest, ProduceRequest
from mainstem.testing import BrokerProcess
from tests.protocol.kafka.raw import RawClient
from tests.security.canary import ask_all

HEAD_BYTES = 61
GZIP, ZSTD = 1, 4


def sealed(packed: bytes, codec: int, count: int) -> bytes:
    """A batch of `count` records whose records are `packed`."""
    builder = BatchBuilder()
    builder.add(b"k", b"v", (), 1)
    head = bytearray(builder.seal_batch(0))[:HEAD_BYTES]
    struct.pack_into(">i", head, 8, HEAD_BYTES - 12 + len(packed))
    struct.pack_into(">h", head, 21, codec)
    struct.pack_into(">i", head, 23, count - 1)
    struct.pack_into(">i", head, 57, count)
    batch = bytes(head) + packed
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def records_of(count: int, value: bytes) -> bytes:
    builder = BatchBuilder()
    for _ in range(count):
        builder.add(b"k", value, (), 1)
    return bytes(builder.seal_batch(0))[HEAD_BYTES:]


def many_members() -> bytes:
    """1.2 MB of gzip members of a few bytes each."""
    records = records_of(1, b"v")
    empty = gzip.compress(b"")
    return sealed(gzip.compress(records) + empty * (1_200_000 // len(empty)), GZIP, 1)


def bomb() -> bytes:
    records = records_of(1, b"\0" * 60_000_000)
    return sealed(deflate(ZSTD, records), ZSTD, 1)


def many_records() -> bytes:
    records = records_of(400_000, b"")
    return sealed(deflate(ZSTD, records), ZSTD, 400_000)


@pytest.mark.parametrize(("made", "taken"), [(many_members, False), (bomb, True), (many_records, True)])
def test_a_compacted_topic_looks_into_a_batch_and_nobody_waits(attacked: BrokerProcess, made: Any, taken: bool) -> None:
    batch = made()
    topic = f"compacted-{made.__name__}"
    with RawClient(attacked) as client:
        create_compacted(client, topic)
        answers: list[Any] = []
        sender = threading.Thread(target=lambda: answers.append(client.produce(topic, batch)))
        sender.start()
        while sender.is_alive():
            ask_all(attacked)
        ask_all(attacked)
        assert (answers[0].error_code == 0) is taken
        assert client.produce(topic, sealed(records_of(1, b"v"), 0, 1)).error_code == 0


def test_what_follows_a_large_batch_stays_behind_it(attacked: BrokerProcess) -> None:
    """Requests on one connection without waiting for answers: offsets come in the order they were sent."""
    topic = "compacted-order"
    with RawClient(attacked) as client:
        create_compacted(client, topic)
        large = many_records()
        batches = [large, sealed(records_of(1, b"v"), 0, 1), large]
        for batch in batches:
            part = ProduceRequest.PartitionProduceData(index=0, records=batch)
            data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
            client.send("Produce", 9, ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]))
        client._correlation = 0  # answers of several requests
        offsets = [client.receive("Produce", 9).responses[0].partition_responses[0].base_offset for _ in batches]
        assert offsets == [0, 400_000, 400_001]


def create_compacted(client: RawClient, topic: str) -> None:
    config = CreateTopicsRequest.CreatableTopicConfig(name="cleanup.policy", value="compact")
    one = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=1, replication_factor=1, configs=[config])
    answer = client.ask("CreateTopics", 5, CreateTopicsRequest(topics=[one], timeout_ms=20_000))
    assert answer.topics[0].error_code == 0, answer

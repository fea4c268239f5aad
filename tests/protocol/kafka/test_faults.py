"""Whatever a peer sends, it gets Kafka's own error or a closed connection; the broker goes on."""

from __future__ import annotations

import random
import struct

import pytest

from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.messages import ApiVersionsRequest, FetchRequest, MetadataRequest, ProduceRequest
from mainstem.protocols.kafka.schema import APIS, BY_NAME
from mainstem.testing import Broker
from tests.protocol.kafka.clients import create_topic, read_all, send, unique
from tests.protocol.kafka.raw import RawClient, batch_of


def test_api_versions_beyond_ours_is_answered_in_version_0(broker: Broker) -> None:
    with RawClient(broker) as raw:
        raw.send_bytes(struct.pack(">ihhih", 10, 18, 99, 7, -1))
        data = raw.receive_bytes()
        assert struct.unpack_from(">i", data)[0] == 7
        answer = wire.decode("ApiVersionsResponse", 0, data[4:])
        assert answer.error_code == 35
        assert (0, 4) in {(one.min_version, one.max_version) for one in answer.api_keys if one.api_key == 18}


def test_produce_is_advertised_from_version_0_and_refused_below_3(broker: Broker) -> None:
    topic = create_topic(broker, unique("old"))
    with RawClient(broker) as raw:
        answer = raw.ask("ApiVersions", 0, ApiVersionsRequest())
        ranges = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
        assert ranges[0] == (0, 13)
        assert ranges[22] == (0, 5)
        for version in (0, 1, 2):
            assert raw.produce(topic, batch_of([b"v"]), version=version).error_code == 35


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_in_every_version(broker: Broker, version: int) -> None:
    topic = create_topic(broker, unique("produce"))
    with RawClient(broker) as raw:
        part = ProduceRequest.PartitionProduceData(index=0, records=batch_of([b"v"]))
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
        if version >= 13:
            line = MetadataRequest.MetadataRequestTopic(name=topic)
            data.topic_id = raw.ask("Metadata", 12, MetadataRequest(topics=[line])).topics[0].topic_id
        request = ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[data])
        answer = raw.ask("Produce", version, request).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, 0)


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_in_every_version(broker: Broker, version: int) -> None:
    topic = create_topic(broker, unique("fetch"))
    send(broker, topic, [b"v"])
    with RawClient(broker) as raw:
        part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
        line = FetchRequest.FetchTopic(topic=topic, partitions=[part])
        if version >= 13:
            asked = MetadataRequest.MetadataRequestTopic(name=topic)
            line.topic_id = raw.ask("Metadata", 12, MetadataRequest(topics=[asked])).topics[0].topic_id
        answer = raw.ask("Fetch", version, FetchRequest(max_wait_ms=0, min_bytes=1, topics=[line]))
        found = answer.responses[0].partitions[0]
        assert found.error_code == 0
        assert b"v" in bytes(found.records)


def test_an_unknown_topic_id_is_told_so(broker: Broker) -> None:
    with RawClient(broker) as raw:
        part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
        line = FetchRequest.FetchTopic(topic_id=bytes(range(16)), partitions=[part])
        answer = raw.ask("Fetch", 13, FetchRequest(max_wait_ms=0, min_bytes=1, topics=[line]))
        assert answer.responses[0].partitions[0].error_code == 100


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", 2_000_000_000),
        struct.pack(">i", -5),
        struct.pack(">i", 0),
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, 3, 99, 1, -1),
        struct.pack(">ihhih", 10, 3, 1, 1, 30_000),
        struct.pack(">ihhihi", 14, 3, 1, 1, -1, 0x7FFFFFFF),
        struct.pack(">ihh", 4, 3, 1),
    ],
    ids=["huge", "negative", "empty", "unknown key", "unknown version", "client id", "array length", "cut off"],
)
def test_malformed_requests_close_the_connection(broker: Broker, data: bytes) -> None:
    with RawClient(broker) as raw:
        raw.send_bytes(data)
        assert raw.closed()


def test_answers_come_in_the_order_of_requests(broker: Broker) -> None:
    topic = create_topic(broker, unique("order"))
    part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    line = FetchRequest.FetchTopic(topic=topic, partitions=[part])
    with RawClient(broker) as raw, RawClient(broker) as other:
        raw.send("Fetch", 11, FetchRequest(max_wait_ms=20_000, min_bytes=1, topics=[line]))
        raw.send("ApiVersions", 0, ApiVersionsRequest())
        assert other.produce(topic, batch_of([b"v"])).error_code == 0
        assert struct.unpack_from(">i", raw.receive_bytes())[0] == 1
        assert struct.unpack_from(">i", raw.receive_bytes())[0] == 2


def test_nothing_is_answered_to_a_produce_without_acks(broker: Broker) -> None:
    topic = create_topic(broker, unique("acks0"))
    part = ProduceRequest.PartitionProduceData(index=0, records=batch_of([b"v"]))
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    with RawClient(broker) as raw:
        raw.send("Produce", 9, ProduceRequest(acks=0, timeout_ms=1_000, topic_data=[data]))
        correlation = raw.send("ApiVersions", 0, ApiVersionsRequest())
        assert struct.unpack_from(">i", raw.receive_bytes())[0] == correlation
    assert read_all(broker, topic, 1)[0].value() == b"v"


def test_unknown_tagged_fields_are_skipped(broker: Broker) -> None:
    body = b"".join(wire.encode("ApiVersionsRequest", 3, ApiVersionsRequest("raw", "1.0")))
    tags = b"\x02\x63\x03abc\x64\x00"
    head = struct.pack(">hhih", 18, 3, 5, -1) + tags
    data = head + body[:-1] + tags
    with RawClient(broker) as raw:
        raw.send_bytes(struct.pack(">i", len(data)) + data)
        assert wire.decode("ApiVersionsResponse", 3, raw.receive_bytes()[4:]).error_code == 0


def test_random_bytes_in_every_api_harm_nobody(broker: Broker) -> None:
    rng = random.Random(20)
    for api in APIS.values():
        for version in {api.first, api.last}:
            body = rng.randbytes(rng.randrange(60))
            head = struct.pack(">hhih", api.key, version, 1, -1) + (b"\0" if api.is_flexible(version) else b"")
            with RawClient(broker) as raw:
                raw.send_bytes(struct.pack(">i", len(head) + len(body)) + head + body)
    with RawClient(broker) as raw:
        assert raw.ask("ApiVersions", 0, ApiVersionsRequest()).error_code == 0


def test_a_fetch_session_only_names_what_changed(broker: Broker) -> None:
    topics = [create_topic(broker, unique("session")) for _ in range(3)]
    lines = [
        FetchRequest.FetchTopic(
            topic=topic,
            partitions=[FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)],
        )
        for topic in topics
    ]
    with RawClient(broker) as raw:
        full = raw.ask("Fetch", 11, FetchRequest(max_wait_ms=0, min_bytes=1, session_epoch=0, topics=lines))
        assert full.session_id
        assert len(full.responses) == 3
        send(broker, topics[1], [b"news"])
        more = FetchRequest(max_wait_ms=5_000, min_bytes=1, session_id=full.session_id, session_epoch=1)
        answer = raw.ask("Fetch", 11, more)
        assert [one.topic for one in answer.responses] == [topics[1]]
        assert raw.ask("Fetch", 11, more).error_code == 71  # the same epoch again
        more.session_id += 1_000
        assert raw.ask("Fetch", 11, more).error_code == 70


def test_every_advertised_api_has_a_sane_range(broker: Broker) -> None:
    with RawClient(broker) as raw:
        answer = raw.ask("ApiVersions", 4, ApiVersionsRequest("raw", "1"))
    assert all(0 <= one.min_version <= one.max_version for one in answer.api_keys)
    assert {one.api_key for one in answer.api_keys} <= {api.key for api in BY_NAME.values()}
    assert {one.name: one.max_version_level for one in answer.finalized_features}["transaction.version"] == 2

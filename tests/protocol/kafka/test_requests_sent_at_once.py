"""Kafka handles the requests of a connection one after another: who sends several at once sees what it changed before."""

from __future__ import annotations

import struct
from typing import Any

from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    ListOffsetsRequest,
    MetadataRequest,
)
from mainstem.testing import Broker
from tests.protocol.kafka.clients import create_topic, send, unique
from tests.protocol.kafka.raw import RawClient

EARLIEST = -2


def asked_at_once(raw: RawClient, *requests: tuple[str, int, Any]) -> list[Any]:
    """All are sent in one write, before any answer is read."""
    parts = [
        wire.encode_request(f"{name}Request", version, value, correlation=number, client_id="raw")
        for number, (name, version, value) in enumerate(requests)
    ]
    raw.send_bytes(b"".join(part for one in parts for part in one))
    answers = []
    for number, (name, version, _) in enumerate(requests):
        data = raw.receive_bytes()
        assert struct.unpack_from(">i", data)[0] == number
        answers.append(wire.decode(f"{name}Response", version, data[4:]))
    return answers


def created(topic: str, partitions: int) -> tuple[str, int, Any]:
    wanted = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
    return "CreateTopics", 4, CreateTopicsRequest(topics=[wanted], timeout_ms=10_000)


def deleted(topic: str) -> tuple[str, int, Any]:
    return "DeleteTopics", 3, DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)


def shown(topic: str) -> tuple[str, int, Any]:
    wanted = MetadataRequest.MetadataRequestTopic(name=topic)
    return "Metadata", 4, MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)


def partitions_of(answer: Any) -> int:
    return len(answer.topics[0].partitions)


def test_offsets_are_listed_as_they_are_after_a_deletion(broker: Broker) -> None:
    topic = create_topic(broker, unique("at-once"))
    send(broker, topic, [b"1", b"2", b"3"])
    removed = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=2)
    removing = DeleteRecordsRequest(
        topics=[DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[removed])], timeout_ms=10_000
    )
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=EARLIEST)
    listing = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])]
    )
    with RawClient(broker) as raw:
        gone, listed = asked_at_once(raw, ("DeleteRecords", 1, removing), ("ListOffsets", 1, listing))
    assert gone.topics[0].partitions[0].low_watermark == 2
    assert listed.topics[0].partitions[0].offset == 2


def test_changes_follow_each_other_and_are_shown_between(broker: Broker) -> None:
    topic = unique("at-once")
    wider = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=5, assignments=None)
    with RawClient(broker) as raw:
        made, at_first, more, then, gone, without, again, at_last = asked_at_once(
            raw,
            created(topic, 2),
            shown(topic),
            ("CreatePartitions", 1, CreatePartitionsRequest(topics=[wider], timeout_ms=10_000)),
            shown(topic),
            deleted(topic),
            shown(topic),
            created(topic, 3),
            shown(topic),
        )
    codes = made.topics[0], more.results[0], gone.responses[0], again.topics[0]
    assert [one.error_code for one in codes] == [0, 0, 0, 0]
    assert [partitions_of(one) for one in (at_first, then, without, at_last)] == [2, 5, 0, 3]

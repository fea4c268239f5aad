"""Requests that make no sense, answered as Apache Kafka 4.3 answers them (each was sent to both)."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.messages import (
    AlterPartitionReassignmentsRequest,
    ConsumerGroupHeartbeatRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    FetchRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetForLeaderEpochRequest,
)
from mainstem.testing import Broker
from tests.protocol.kafka.clients import create_topic, send, unique
from tests.protocol.kafka.raw import RawClient

UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION, INVALID_REPLICA_ASSIGNMENT = 3, 25, 35, 39
INVALID_REQUEST, SESSION_NOT_FOUND, OUT_OF_RANGE, INVALID_GROUP_ID = 42, 70, 1, 24


def partition_count(raw: RawClient, topic: str) -> int:
    line = MetadataRequest.MetadataRequestTopic(name=topic)
    answer = raw.ask("Metadata", 12, MetadataRequest(topics=[line], allow_auto_topic_creation=False)).topics[0]
    return len(answer.partitions)


def test_a_topic_to_delete_is_named_once_and_by_name_or_by_id(broker: Broker) -> None:
    topic, other = create_topic(broker, unique("kept")), create_topic(broker, unique("kept"))
    state = DeleteTopicsRequest.DeleteTopicState
    with RawClient(broker) as raw:
        line = MetadataRequest.MetadataRequestTopic(name=other)
        other_id = raw.ask("Metadata", 12, MetadataRequest(topics=[line])).topics[0].topic_id
        for topics in ([state(name=topic, topic_id=other_id)], [state(name=None)], [state(name=topic)] * 2):
            (answer,) = raw.ask("DeleteTopics", 6, DeleteTopicsRequest(topics=topics, timeout_ms=9_000)).responses
            assert answer.error_code == INVALID_REQUEST
        (answer,) = raw.ask("DeleteTopics", 5, DeleteTopicsRequest(topic_names=[topic] * 2, timeout_ms=9_000)).responses
        assert answer.error_code == INVALID_REQUEST
        assert partition_count(raw, topic) == partition_count(raw, other) == 1


def test_new_partitions_are_given_to_the_one_node_or_refused(broker: Broker) -> None:
    topic = create_topic(broker, unique("grow"))
    line, assignment = CreatePartitionsRequest.CreatePartitionsTopic, CreatePartitionsRequest.CreatePartitionsAssignment
    with RawClient(broker) as raw:

        def grow(*lines: Any) -> list[int]:
            answer = raw.ask("CreatePartitions", 3, CreatePartitionsRequest(topics=list(lines), timeout_ms=9_000))
            return [one.error_code for one in answer.results]

        for nodes in ([[9]], [[1, 1]], [[]], [], [[1], [1]]):
            given = [assignment(broker_ids=ids) for ids in nodes]
            assert grow(line(name=topic, count=2, assignments=given)) == [INVALID_REPLICA_ASSIGNMENT]
        twice = [line(name=topic, count=count, assignments=None) for count in (2, 3)]
        assert grow(*twice) == [INVALID_REQUEST]
        assert partition_count(raw, topic) == 1
        assert grow(line(name=topic, count=2, assignments=[assignment(broker_ids=[1])])) == [0]
        assert partition_count(raw, topic) == 2


def test_a_topic_named_twice_is_not_made_and_answered_once(broker: Broker) -> None:
    twice, once = unique("twice"), unique("once")
    lines = [
        CreateTopicsRequest.CreatableTopic(name=n, num_partitions=1, replication_factor=1) for n in (twice, twice, once)
    ]
    with RawClient(broker) as raw:
        answer = raw.ask("CreateTopics", 7, CreateTopicsRequest(topics=lines, timeout_ms=9_000))
        assert {(one.name, one.error_code) for one in answer.topics} == {(twice, INVALID_REQUEST), (once, 0)}
        assert len(answer.topics) == 2


@pytest.mark.parametrize(("special", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 12), (-100, 12)])
def test_special_timestamps_are_known_from_the_version_that_brought_them(
    broker: Broker, special: int, since: int
) -> None:
    topic = create_topic(broker, unique("special"))
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=special)
    request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])])
    with RawClient(broker) as raw:
        for version in range(1, 12):
            code = raw.ask("ListOffsets", version, request).topics[0].partitions[0].error_code
            assert code == (0 if version >= since else UNSUPPORTED_VERSION), version


def test_no_epoch_has_no_end(broker: Broker) -> None:
    topic = create_topic(broker, unique("epoch"))
    send(broker, topic, [b"v"])
    part = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=-1)
    line = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[part])
    with RawClient(broker) as raw:
        answer = raw.ask("OffsetForLeaderEpoch", 4, OffsetForLeaderEpochRequest(topics=[line])).topics[0].partitions[0]
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, -1, -1)


def test_a_fetch_session_repeats_an_error_until_it_is_cured(broker: Broker) -> None:
    topic = create_topic(broker, unique("session"))
    send(broker, topic, [b"v"])
    with RawClient(broker) as raw:
        first = raw.fetch(topic, 99, session_epoch=0)
        assert first.responses[0].partitions[0].error_code == OUT_OF_RANGE
        for epoch in (1, 2):
            again = raw.ask(
                "Fetch", 11, FetchRequest(max_wait_ms=5_000, session_id=first.session_id, session_epoch=epoch)
            )
            assert again.responses[0].partitions[0].error_code == OUT_OF_RANGE
        cured = raw.fetch(topic, 0, session_id=first.session_id, session_epoch=3)
        assert cured.responses[0].partitions[0].error_code == 0
        assert raw.fetch(topic, 0, session_epoch=4).error_code == SESSION_NOT_FOUND


def test_settings_are_all_shown_where_none_is_named_and_unknown_ones_are_deleted(broker: Broker) -> None:
    topic = create_topic(broker, unique("settings"))
    with RawClient(broker) as raw:

        def shown(name: str, kind: int, keys: list[str] | None) -> Any:
            resource = DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=keys
            )
            return raw.ask("DescribeConfigs", 4, DescribeConfigsRequest(resources=[resource])).results[0]

        assert len(shown(topic, 2, []).configs) == len(shown(topic, 2, None).configs) > 30
        assert shown("", 32, None).error_code == INVALID_REQUEST
        step = IncrementalAlterConfigsRequest.AlterableConfig(name="nonsense", config_operation=1, value=None)
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=2, resource_name=topic, configs=[step]
        )
        answer = raw.ask("IncrementalAlterConfigs", 1, IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == 0


def test_what_is_not_there_needs_no_leader_and_is_not_moved(broker: Broker) -> None:
    topic, missing = create_topic(broker, unique("lead")), unique("missing")
    with RawClient(broker) as raw:
        lines = [
            ElectLeadersRequest.TopicPartitions(topic=name, partitions=indexes)
            for name, indexes in ((topic, [0, 9]), (missing, [0]))
        ]
        elected = raw.ask("ElectLeaders", 2, ElectLeadersRequest(topic_partitions=lines, timeout_ms=1_000))
        codes = [[p.error_code for p in line.partition_result] for line in elected.replica_election_results]
        assert codes == [[84, UNKNOWN_TOPIC_OR_PARTITION], [UNKNOWN_TOPIC_OR_PARTITION]]
        kind = AlterPartitionReassignmentsRequest
        parts = [kind.ReassignablePartition(partition_index=index, replicas=[1]) for index in (0, 9)]
        moved = raw.ask(
            "AlterPartitionReassignments", 0, kind(topics=[kind.ReassignableTopic(name=topic, partitions=parts)])
        )
        assert [p.error_code for p in moved.responses[0].partitions] == [0, UNKNOWN_TOPIC_OR_PARTITION]


def test_a_place_before_the_first_partition_is_the_first(broker: Broker) -> None:
    topic = create_topic(broker, unique("cursor"), 2)
    kind = DescribeTopicPartitionsRequest
    with RawClient(broker) as raw:
        request = kind(topics=[kind.TopicRequest(name=topic)], cursor=kind.Cursor(topic_name=topic, partition_index=-1))
        answer = raw.ask("DescribeTopicPartitions", 0, request)
        assert [p.partition_index for p in answer.topics[0].partitions] == [0, 1]


def test_there_are_no_controllers_and_no_coordinators_of_other_things(broker: Broker) -> None:
    with RawClient(broker) as raw:
        for kind, code in ((1, 0), (2, 114), (7, 115)):
            assert raw.ask("DescribeCluster", 1, DescribeClusterRequest(endpoint_type=kind)).error_code == code
        for kind, code in ((0, 0), (1, 0), (2, INVALID_REQUEST), (5, INVALID_REQUEST)):
            old = raw.ask("FindCoordinator", 3, FindCoordinatorRequest(key="k", key_type=kind))
            new = raw.ask("FindCoordinator", 6, FindCoordinatorRequest(coordinator_keys=["k"], key_type=kind))
            assert old.error_code == new.coordinators[0].error_code == code


def commit(raw: RawClient, group: str, topic: str, **who: Any) -> int:
    part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    line = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])
    answer = raw.ask("OffsetCommit", 9, OffsetCommitRequest(group_id=group, topics=[line], **who))
    return int(answer.topics[0].partitions[0].error_code)


def test_a_group_without_members_takes_offsets_of_whoever_claims_no_generation(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("simple")), unique("simple")
    with RawClient(broker) as raw:
        assert commit(raw, group, topic, member_id="someone", generation_id_or_member_epoch=-1) == 0
        (listed,) = (one for one in raw.ask("ListGroups", 5, ListGroupsRequest()).groups if one.group_id == group)
        assert (listed.group_state, listed.group_type) == ("Empty", "classic")


def test_offsets_of_what_is_not_there_cannot_be_deleted(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("offsets")), unique("offsets")
    part, line = OffsetDeleteRequest.OffsetDeleteRequestPartition, OffsetDeleteRequest.OffsetDeleteRequestTopic
    with RawClient(broker) as raw:
        commit(raw, group, topic)
        for name, index, code in (
            (unique("missing"), 0, UNKNOWN_TOPIC_OR_PARTITION),
            (topic, 7, UNKNOWN_TOPIC_OR_PARTITION),
            (topic, 0, 0),
        ):
            asked = [line(name=name, partitions=[part(partition_index=index)])]
            answer = raw.ask("OffsetDelete", 0, OffsetDeleteRequest(group_id=group, topics=asked))
            assert answer.topics[0].partitions[0].error_code == code


def test_each_member_that_leaves_an_unknown_group_is_told_so(broker: Broker) -> None:
    members = [LeaveGroupRequest.MemberIdentity(member_id=name) for name in ("a", "b")]
    with RawClient(broker) as raw:
        answer = raw.ask("LeaveGroup", 5, LeaveGroupRequest(group_id=unique("none"), members=members))
        assert (answer.error_code, [one.error_code for one in answer.members]) == (0, [UNKNOWN_MEMBER_ID] * 2)


def test_a_client_id_need_not_be_text(broker: Broker) -> None:
    with RawClient(broker) as raw:
        request = wire.HEADER.pack(3, 1, 7, 2) + b"\xff\xfe" + struct.pack(">i", 0)
        raw.send_bytes(struct.pack(">i", len(request)) + request)
        assert struct.unpack_from(">i", raw.receive_bytes())[0] == 7


def test_an_id_cannot_be_spelled_like_that_of_another_tenant(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("tenant")), "other\x01group"
    with RawClient(broker) as raw:
        assert commit(raw, group, topic) == INVALID_GROUP_ID
        beat = ConsumerGroupHeartbeatRequest(group_id=group, member_id="m", rebalance_timeout_ms=9_000)
        beat.subscribed_topic_names, beat.topic_partitions = [topic], []
        assert raw.ask("ConsumerGroupHeartbeat", 1, beat).error_code == INVALID_GROUP_ID
        ask = InitProducerIdRequest(transactional_id=group, transaction_timeout_ms=9_000)
        assert raw.ask("InitProducerId", 5, ask).error_code == INVALID_REQUEST
        (described,) = raw.ask("DescribeGroups", 5, DescribeGroupsRequest(groups=[group])).groups
        assert described.group_state == "Dead"
    create_topic(broker, unique("tenant"))  # what groups there are is looked through


def test_a_heartbeat_says_all_it_must_and_nothing_empty(broker: Broker) -> None:
    topic, group, member = create_topic(broker, unique("beat")), unique("beat"), unique("member")
    with RawClient(broker) as raw:

        def beat(**changes: Any) -> int:
            said: dict[str, Any] = {"group_id": group, "member_id": member, "rebalance_timeout_ms": 9_000}
            said |= {"subscribed_topic_names": [topic], "topic_partitions": []} | changes
            return int(raw.ask("ConsumerGroupHeartbeat", 1, ConsumerGroupHeartbeatRequest(**said)).error_code)

        owned = [ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=b"t" * 16, partitions=[0])]
        for fault in (
            {"member_id": ""},
            {"instance_id": ""},
            {"rack_id": ""},
            {"rebalance_timeout_ms": -1},
            {"subscribed_topic_names": None},
            {"topic_partitions": None},
            {"topic_partitions": owned},
            {"member_epoch": -2},
            {"member_epoch": -3},
        ):
            assert beat(**fault) == INVALID_REQUEST, fault
        assert beat() == 0

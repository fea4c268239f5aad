"""Topics, partitions, records and settings, as administrators handle them."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka import KafkaAdminClient

from mainstem.broker.topics.policy import Policy
from mainstem.model.origin import Origin
from mainstem.model.topic import kafka_name
from mainstem.protocols.kafka.config_table import policy_for
from mainstem.protocols.kafka.messages import (
    AlterReplicaLogDirsRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    ElectLeadersRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from mainstem.testing import Broker
from tests.protocol.kafka.clients import admin, consumer, create_topic, producer, read_all, send, unique
from tests.protocol.kafka.raw import RawClient


def test_topics_of_the_brokers_own_are_internal_so_that_patterns_pass_them_over(broker: Broker) -> None:
    assert broker.app is not None and broker.loop is not None
    namespace = broker.app.broker.namespace("/")
    broker.loop.call_soon_threadsafe(lambda: namespace.publish(b"$own/facts", b"x", origin=Origin.BROKER))
    topic = create_topic(broker, unique("plain"))
    client = admin(broker)
    own = kafka_name(b"$own/facts")
    told = client.describe_topics(TopicCollection([own, topic]))
    assert told[own].result(10).is_internal
    assert not told[topic].result(10).is_internal


def topic_config(broker: Broker, topic: str) -> dict[str, ConfigEntry]:
    client = admin(broker)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return client.describe_configs([resource])[resource].result(10)


def alter(broker: Broker, topic: str, *steps: tuple[str, str, AlterConfigOpType]) -> None:
    client = admin(broker)
    entries = [ConfigEntry(name, value, incremental_operation=kind) for name, value, kind in steps]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    client.incremental_alter_configs([resource])[resource].result(10)


def test_topics_are_made_described_grown_and_deleted(broker: Broker) -> None:
    topic = create_topic(broker, unique("life"), 2)
    client = admin(broker)
    described = client.describe_topics(TopicCollection([topic]))[topic].result(10)
    assert len(described.partitions) == 2
    assert described.topic_id is not None
    client.create_partitions([NewPartitions(topic, 5)])[topic].result(10)
    assert len(client.list_topics(topic, timeout=10).topics[topic].partitions) == 5
    client.delete_topics([topic])[topic].result(10)
    assert topic not in client.list_topics(timeout=10).topics
    create_topic(broker, topic)
    again = client.describe_topics(TopicCollection([topic]))[topic].result(10)
    assert str(again.topic_id) != str(described.topic_id)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (NewTopic("no spaces please", 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("x" * 250, 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("ok", 1, 3), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("ok", 5_000, 1), "INVALID_PARTITIONS"),
        (NewTopic("ok", 1, 1, config={"retention.msx": "1"}), "did you mean retention.ms"),
        (NewTopic("ok", 1, 1, config={"retention.ms": "soon"}), "INVALID_CONFIG"),
        (NewTopic("ok", 1, 1, config={"cleanup.policy": "burn"}), "INVALID_CONFIG"),
    ],
)
def test_what_cannot_be_made_is_refused_with_kafkas_own_error(broker: Broker, asked: NewTopic, error: str) -> None:
    client = admin(broker)
    with pytest.raises(KafkaException, match=error):
        client.create_topics([asked])[asked.topic].result(10)


def test_making_a_topic_twice_is_refused(broker: Broker) -> None:
    topic = create_topic(broker, unique("twice"))
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        create_topic(broker, topic)


def test_validate_only_makes_nothing(broker: Broker) -> None:
    client, topic = admin(broker), unique("validate")
    client.create_topics([NewTopic(topic, 1, 1)], validate_only=True)[topic].result(10)
    assert topic not in client.list_topics(timeout=10).topics


def test_settings_show_value_source_and_synonym(broker: Broker) -> None:
    topic = create_topic(broker, unique("config"), retention_ms="60000")
    config = topic_config(broker, topic)
    assert config["retention.ms"].value == "60000"
    assert config["retention.ms"].source == 1  # type: ignore[comparison-overlap]
    assert "log.retention.ms" in config["retention.ms"].synonyms
    assert config["segment.bytes"].is_default
    assert config["cleanup.policy"].value == "delete"
    for name in ("min.insync.replicas", "flush.messages", "mainstem.durability", "mainstem.engine"):
        assert name in config


def test_min_insync_replicas_is_set_for_the_whole_cluster_as_kraft_does_it(broker: Broker) -> None:
    """KIP-966: Kafka 4.1 and later write it down when they begin, and tools that leave out defaults show it."""
    whole_cluster, own, default, topic = 3, 1, 5, create_topic(broker, unique("isr"))
    client = admin(broker)

    def described(kind: ResourceType, name: str) -> Any:
        (future,) = client.describe_configs([ConfigResource(kind, name)]).values()
        return future.result(10)["min.insync.replicas"]

    for kind, name in ((ResourceType.TOPIC, topic), (ResourceType.BROKER, "1")):
        entry = described(kind, name)
        assert (entry.value, entry.source, entry.is_default) == ("1", whole_cluster, False)
    with RawClient(broker) as raw:
        asked = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=4, resource_name="", configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[asked], include_synonyms=True)
        (cluster,) = raw.ask("DescribeConfigs", 4, request).results
    (shown,) = cluster.configs
    assert (shown.name, shown.value, shown.config_source) == ("min.insync.replicas", "1", whole_cluster)
    assert [(one.value, one.source) for one in shown.synonyms] == [("1", whole_cluster), ("1", default)]
    alter(broker, topic, ("min.insync.replicas", "1", AlterConfigOpType.SET))
    assert described(ResourceType.TOPIC, topic).source == own
    alter(broker, topic, ("min.insync.replicas", "", AlterConfigOpType.DELETE))
    assert described(ResourceType.TOPIC, topic).source == whole_cluster


def test_settings_are_set_appended_subtracted_and_deleted(broker: Broker) -> None:
    topic = create_topic(broker, unique("alter"))
    alter(broker, topic, ("cleanup.policy", "compact", AlterConfigOpType.APPEND))
    assert set(topic_config(broker, topic)["cleanup.policy"].value.split(",")) == {"compact", "delete"}
    alter(broker, topic, ("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT))
    assert topic_config(broker, topic)["cleanup.policy"].value == "compact"
    alter(
        broker, topic, ("cleanup.policy", "", AlterConfigOpType.DELETE), ("retention.ms", "5000", AlterConfigOpType.SET)
    )
    config = topic_config(broker, topic)
    assert config["cleanup.policy"].value == "delete"
    assert config["retention.ms"].value == "5000"
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        alter(broker, topic, ("retention.ms", "-5", AlterConfigOpType.SET))
    with pytest.raises(KafkaException, match="did you mean"):
        alter(broker, topic, ("retention.millis", "5", AlterConfigOpType.SET))


def test_a_topic_without_a_cleanup_policy_keeps_everything(broker: Broker) -> None:
    topic = create_topic(broker, unique("alter"), cleanup_policy="delete", retention_ms="5000")
    alter(broker, topic, ("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT))
    config = topic_config(broker, topic)
    assert (config["cleanup.policy"].value, config["retention.ms"].value) == ("", "5000")
    policy = policy_for(Policy(), {"cleanup.policy": "", "retention.ms": "5000", "retention.bytes": "1"})
    assert (policy.retention_ms, policy.retention_bytes, policy.cleanup) == (-1, -1, "delete")
    alter(broker, topic, ("cleanup.policy", "delete", AlterConfigOpType.APPEND))
    assert topic_config(broker, topic)["cleanup.policy"].value == "delete"


def test_altering_all_forgets_what_is_not_named(broker: Broker) -> None:
    topic = create_topic(broker, unique("replace"), retention_ms="60000")
    client = admin(broker)
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "2000"})
    client.alter_configs([resource])[resource].result(10)
    config = topic_config(broker, topic)
    assert config["max.message.bytes"].value == "2000"
    assert config["retention.ms"].is_default


def test_a_change_of_engine_keeps_offsets_and_records(broker: Broker) -> None:
    topic = create_topic(broker, unique("move"))
    send(broker, topic, [b"0", b"1"])
    alter(broker, topic, ("mainstem.engine", "memory", AlterConfigOpType.SET))
    send(broker, topic, [b"2", b"3"])
    found = read_all(broker, topic, 4)
    assert [(message.offset(), message.value()) for message in found] == [(n, b"%d" % n) for n in range(4)]


def test_a_compacted_topic_refuses_records_without_a_key(broker: Broker) -> None:
    topic = create_topic(broker, unique("keys"), cleanup_policy="compact")
    errors: list[object] = []
    sender = producer(broker)
    sender.produce(topic, b"v", on_delivery=lambda error, _: errors.append(error.name()))
    sender.produce(topic, b"v", key=b"k", on_delivery=lambda error, _: errors.append(error))
    sender.flush(10)
    assert "INVALID_RECORD" in errors


def test_the_topics_compression_is_applied(broker: Broker) -> None:
    topic = create_topic(broker, unique("compression"), compression_type="zstd")
    send(broker, topic, [b"a" * 500], compression_type="none")
    with RawClient(broker) as raw:
        records = raw.fetch(topic, 0).responses[0].partitions[0].records
        assert bytes(records)[22] & 7 == 4
    assert read_all(broker, topic, 1)[0].value() == b"a" * 500


def test_timestamps_out_of_bounds_are_refused(broker: Broker) -> None:
    topic = create_topic(broker, unique("bounds"), message_timestamp_before_max_ms="1000")
    errors: list[str] = []
    sender = producer(broker)
    sender.produce(topic, b"v", timestamp=1_000, on_delivery=lambda error, _: errors.append(error.name()))
    sender.flush(10)
    assert errors == ["INVALID_TIMESTAMP"]


def test_records_are_deleted_up_to_an_offset(broker: Broker) -> None:
    topic = create_topic(broker, unique("delete"))
    send(broker, topic, [b"%d" % n for n in range(10)], linger_ms=50)
    client = admin(broker)
    at = TopicPartition(topic, 0, 7)
    assert client.delete_records([at])[at].result(10).low_watermark == 7
    reader = consumer(broker)
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (7, 10)
    reader.close()
    assert [m.value() for m in read_all(broker, topic, 3, offset=0)] == [b"7", b"8", b"9"]


def test_offsets_are_found_by_time_and_by_every_special_timestamp(broker: Broker) -> None:
    topic = create_topic(broker, unique("times"))
    sender = producer(broker, linger_ms=100)
    for time_ms in (1_000, 3_000, 2_000, 4_000):
        sender.produce(topic, b"%d" % time_ms, timestamp=time_ms)
    sender.flush(10)
    client = admin(broker)
    at = TopicPartition(topic, 0)

    def find(spec: OffsetSpec) -> int:
        return int(client.list_offsets({at: spec})[at].result(10).offset)

    assert find(OffsetSpec.earliest()) == 0
    assert find(OffsetSpec.latest()) == 4
    assert find(OffsetSpec.max_timestamp()) == 3
    assert [find(OffsetSpec.for_timestamp(t)) for t in (0, 1_000, 1_500, 3_500, 9_000)] == [0, 0, 1, 3, -1]
    with RawClient(broker) as raw:
        for special, expected in ((-4, 0), (-5, -1), (-6, -1)):
            part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=special)
            line = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])
            answer = raw.ask("ListOffsets", 11, ListOffsetsRequest(replica_id=-1, topics=[line]))
            assert answer.topics[0].partitions[0].offset == expected


def test_an_epoch_ends_where_the_log_does(broker: Broker) -> None:
    topic = create_topic(broker, unique("epoch"))
    send(broker, topic, [b"0", b"1"])
    part = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    line = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[part])
    with RawClient(broker) as raw:
        for version in (2, 3, 4):
            answer = raw.ask("OffsetForLeaderEpoch", version, OffsetForLeaderEpochRequest(topics=[line]))
            found = answer.topics[0].partitions[0]
            assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 0, 2)
        part.current_leader_epoch = 9
        answer = raw.ask("OffsetForLeaderEpoch", 4, OffsetForLeaderEpochRequest(topics=[line]))
        assert answer.topics[0].partitions[0].error_code == 75


def test_the_cluster_is_one_node_at_the_address_dialled(broker: Broker) -> None:
    client = admin(broker)
    described = client.describe_cluster().result(10)
    assert [(node.host, node.port) for node in described.nodes] == [("127.0.0.1", broker.kafka_port)]
    assert described.controller.id == described.nodes[0].id
    assert len(described.cluster_id) == 22
    kp = KafkaAdminClient(bootstrap_servers=f"localhost:{broker.kafka_port}")
    assert kp.describe_cluster()["cluster_id"] == described.cluster_id
    kp.close()


def test_log_directories_and_elections_are_answered(broker: Broker) -> None:
    topic = create_topic(broker, unique("dirs"))
    send(broker, topic, [bytes(1_000)])
    with RawClient(broker) as raw:
        answer = raw.ask("DescribeLogDirs", 4, DescribeLogDirsRequest(topics=None))
        sizes = {line.name: line.partitions[0].partition_size for line in answer.results[0].topics}
        assert sizes[topic] > 1_000
        line = ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[0])
        elected = raw.ask("ElectLeaders", 2, ElectLeadersRequest(topic_partitions=[line]))
        assert elected.replica_election_results[0].partition_result[0].error_code == 84


def test_a_replica_is_not_moved_to_another_directory_and_the_connection_stays(broker: Broker) -> None:
    topic, kinds = create_topic(broker, unique("dirs")), AlterReplicaLogDirsRequest
    with RawClient(broker) as raw:
        ours = raw.ask("DescribeLogDirs", 4, DescribeLogDirsRequest(topics=None)).results[0].log_dir
        asked = [
            (ours, topic, [0, 7]),
            ("/elsewhere", topic, [0]),
            (ours, "no-such-topic", [0]),
        ]
        dirs = [
            kinds.AlterReplicaLogDir(
                path=path, topics=[kinds.AlterReplicaLogDirTopic(name=name, partitions=partitions)]
            )
            for path, name, partitions in asked
        ]
        for version in (1, 2):
            answer = raw.ask("AlterReplicaLogDirs", version, kinds(dirs=dirs))
            codes = {line.topic_name: [one.error_code for one in line.partitions] for line in answer.results}
            assert codes == {topic: [0, 3, 57], "no-such-topic": [3]}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_quorum_is_this_node(broker: Broker, version: int) -> None:
    kinds = DescribeQuorumRequest
    lines = [
        kinds.TopicData(topic_name=name, partitions=[kinds.PartitionData(partition_index=index)])
        for name, index in (("__cluster_metadata", 0), ("__cluster_metadata", 1), ("other", 0))
    ]
    with RawClient(broker) as raw:
        answer = raw.ask("DescribeQuorum", version, kinds(topics=lines))
    assert answer.error_code == 0
    quorum, *others = [line.partitions[0] for line in answer.topics]
    assert (quorum.error_code, quorum.leader_id, quorum.partition_index) == (0, 1, 0)
    assert [voter.replica_id for voter in quorum.current_voters] == [1] and not quorum.observers
    assert [one.error_code for one in others] == [3, 3]
    if version == 2:
        assert [(node.node_id, node.listeners[0].port) for node in answer.nodes] == [(1, broker.kafka_port)]


def test_the_brokers_settings_are_shown_read_only(broker: Broker) -> None:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=4, resource_name="1", configuration_keys=None
    )
    with RawClient(broker) as raw:
        answer = raw.ask("DescribeConfigs", 4, DescribeConfigsRequest(resources=[resource]))
    shown = {one.name: one for one in answer.results[0].configs}
    assert shown["num.partitions"].read_only
    assert shown["auto.create.topics.enable"].value == "true"


def test_kafka_python_and_aiokafka_administrate_too(broker: Broker) -> None:
    topic = create_topic(broker, unique("kp-admin"))
    kp = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    assert topic in kp.list_topics()
    kp.describe_topics([topic])
    kp.close()


async def test_aiokafka_lists_topics(broker: Broker) -> None:
    topic = create_topic(broker, unique("aio-admin"))
    client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await client.start()
    assert topic in await client.list_topics()
    await client.close()


@pytest.mark.parametrize("version", range(14))
def test_metadata_in_every_version(broker: Broker, version: int) -> None:
    topic = create_topic(broker, unique("meta"))
    line = MetadataRequest.MetadataRequestTopic(name=topic)
    with RawClient(broker) as raw:
        answer = raw.ask("Metadata", version, MetadataRequest(topics=[line]))
        assert [(one.error_code, one.name, len(one.partitions)) for one in answer.topics] == [(0, topic, 1)]
        unknown = MetadataRequest.MetadataRequestTopic(name=unique("unknown"))
        request = MetadataRequest(topics=[unknown], allow_auto_topic_creation=False)
        if version >= 4:
            assert raw.ask("Metadata", version, request).topics[0].error_code == 3

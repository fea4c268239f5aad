"""Asking for a topic that is not there makes it, where the request and the broker allow it, as Kafka does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from confluent_kafka import KafkaError
from kafka import KafkaConsumer

from mainstem.broker.delivery import turns
from mainstem.protocols.kafka.errors import ErrorCode
from mainstem.protocols.kafka.messages import CreateTopicsRequest, MetadataRequest, OffsetCommitRequest, ProduceRequest
from mainstem.testing import Broker
from tests.protocol.kafka.clients import DEADLINE_S, admin, consumer, eventually, read_all, send, unique
from tests.protocol.kafka.raw import RawClient, batch_of

NO_ID = bytes(16)


@pytest.fixture(scope="module")
def careful() -> Iterator[Broker]:
    """Topics are made by administrators only, with three partitions where nothing else is said."""
    with Broker("topics.auto_create=false", engine="segment") as running:
        yield running


def metadata(
    client: RawClient, *, name: str | None = "", topic_id: bytes = NO_ID, create: bool = False, version: int = 13
) -> Any:
    asked = MetadataRequest.MetadataRequestTopic(name=name, topic_id=topic_id)
    answer = client.ask("Metadata", version, MetadataRequest(topics=[asked], allow_auto_topic_creation=create))
    (topic,) = answer.topics
    return topic


def produce_by_id(client: RawClient, topic_id: bytes) -> Any:
    part = ProduceRequest.PartitionProduceData(index=0, records=batch_of([b"first"]))
    data = ProduceRequest.TopicProduceData(topic_id=topic_id, partition_data=[part])
    answer = client.ask("Produce", 13, ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]))
    return answer.responses[0].partition_responses[0]


def test_a_record_for_the_id_that_metadata_told_is_taken(broker: Broker) -> None:
    topic = unique("asked")
    with RawClient(broker) as client:
        made = metadata(client, name=topic, create=True)
        assert (made.error_code, made.name, len(made.partitions)) == (0, topic, 1)
        answer = produce_by_id(client, made.topic_id)
        assert (answer.error_code, answer.base_offset) == (0, 0)
        assert metadata(client, name=topic).topic_id == made.topic_id
    assert [message.value() for message in read_all(broker, topic, 1)] == [b"first"]


@pytest.mark.parametrize("version", [0, 1, 3, 4, 9, 12, 13])
def test_every_version_of_metadata_makes_a_topic(broker: Broker, version: int) -> None:
    topic = unique("asked")
    with RawClient(broker) as client:
        assert metadata(client, name=topic, create=True, version=version).error_code == 0
    assert topic in admin(broker).list_topics(timeout=10).topics


def test_a_topic_made_by_asking_has_the_brokers_default_partitions() -> None:
    with Broker("topics.partitions=3") as running, RawClient(running) as client:
        assert len(metadata(client, name="asked", create=True).partitions) == 3


def test_nothing_is_made_where_the_request_does_not_allow_it(broker: Broker) -> None:
    topic = unique("asked")
    with RawClient(broker) as client:
        assert metadata(client, name=topic).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic not in admin(broker).list_topics(timeout=10).topics


def test_nothing_is_made_where_topics_do_not_make_themselves(careful: Broker) -> None:
    topic = unique("asked")
    with RawClient(careful) as client:
        assert metadata(client, name=topic, create=True).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert client.produce(topic, batch_of([b"x"])).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic not in admin(careful).list_topics(timeout=10).topics


def test_a_name_that_cannot_be_a_topic_is_refused_and_the_others_are_made(broker: Broker) -> None:
    topic = unique("asked")
    kind = MetadataRequest.MetadataRequestTopic
    names = ["a/b", topic, "x" * 250, topic]
    with RawClient(broker) as client:
        request = MetadataRequest(topics=[kind(name=name) for name in names], allow_auto_topic_creation=True)
        answer = client.ask("Metadata", 13, request)
    invalid = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert [one.error_code for one in answer.topics] == [invalid, 0, invalid, 0]
    assert answer.topics[1].topic_id == answer.topics[3].topic_id


@pytest.mark.parametrize("name", ["", None])
def test_metadata_by_topic_id_with_or_without_an_empty_name(broker: Broker, name: str | None) -> None:
    topic = unique("by-id")
    send(broker, topic, [b"x"])
    with RawClient(broker) as client:
        topic_id = metadata(client, name=topic).topic_id
        found = metadata(client, name=name, topic_id=topic_id)
        assert (found.error_code, found.name, found.topic_id) == (0, topic, topic_id)
        unknown = metadata(client, name=name, topic_id=b"\7" * 16, create=True)
        assert (unknown.error_code, unknown.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)


def test_a_topic_without_name_and_id_is_refused(broker: Broker) -> None:
    with RawClient(broker) as client:
        assert metadata(client, name=None, create=True).error_code == ErrorCode.INVALID_REQUEST


def test_offsets_of_a_topic_that_does_not_exist_are_refused(broker: Broker) -> None:
    topic = unique("nowhere")
    part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    line = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])
    with RawClient(broker) as client:
        request = OffsetCommitRequest(group_id=unique("g"), generation_id_or_member_epoch=-1, topics=[line])
        answer = client.ask("OffsetCommit", 8, request)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic not in admin(broker).list_topics(timeout=10).topics


def test_a_consumer_of_librdkafka_that_waits_for_a_topic_does_not_make_it(broker: Broker) -> None:
    topic = unique("waiting")
    source = consumer(broker)
    try:
        source.subscribe([topic])
        message = source.poll(DEADLINE_S)
        assert message is not None
        assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    finally:
        source.close()
    assert topic not in admin(broker).list_topics(timeout=10).topics


def test_a_consumer_of_kafka_python_makes_the_topic_it_waits_for(broker: Broker) -> None:
    topic = unique("waiting")
    source = KafkaConsumer(topic, bootstrap_servers=broker.bootstrap_servers, group_id=unique("g"))
    try:
        eventually(lambda: not source.poll(100) and len(source.assignment()) == 1, "the consumer is assigned")
        assert topic in admin(broker).list_topics(timeout=10).topics
    finally:
        source.close()


def test_a_queues_name_is_shown_and_becomes_a_topic_by_producing_to_it(broker: Broker) -> None:
    name = unique("tasks")
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    connection.channel().queue_declare(name, durable=True)
    with RawClient(broker) as client:
        shown = metadata(client, name=name, create=True)
        assert (shown.error_code, len(shown.partitions)) == (0, 1)
        assert name not in admin(broker).list_topics(timeout=10).topics
        assert produce_by_id(client, shown.topic_id).error_code == 0
    assert [message.value() for message in read_all(broker, name, 1)] == [b"first"]
    connection.close()


def test_many_topics_of_one_request_are_made_with_the_turns_of_others_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SLICE_NS", 0)  # so that each of them takes a turn
    count = 30
    with Broker() as broker, RawClient(broker) as client:
        app = broker.app
        assert app is not None
        given = list[str]()
        give = app.broker.turns.soon
        monkeypatch.setattr(
            app.broker.turns, "soon", lambda call, tenant="": (given.append(tenant), give(call, tenant))
        )
        asked = [
            CreateTopicsRequest.CreatableTopic(name=f"many-{n}", num_partitions=1, replication_factor=1)
            for n in range(count)
        ]
        made = client.ask("CreateTopics", 5, CreateTopicsRequest(topics=asked, timeout_ms=20_000))
        assert [topic.error_code for topic in made.topics] == [0] * count
        assert given.count("/") >= count
        given.clear()
        listed = client.ask("Metadata", 9, MetadataRequest(topics=None))
        assert {f"many-{n}" for n in range(count)} <= {topic.name for topic in listed.topics}
        assert given.count("/") >= count

"""CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from mainstem.broker.rights.access import Action
from mainstem.broker.topics.policy import PARTITIONS_MAX
from mainstem.model.errors import MainstemError
from mainstem.model.topic import topic_of_kafka
from mainstem.protocols.kafka.config_table import TOPIC_SETTINGS, checked, policy_for, shown_value, topic_origin
from mainstem.protocols.kafka.errors import ErrorCode, code_of
from mainstem.protocols.kafka.handlers.permission import absent, may, may_create, may_see
from mainstem.protocols.kafka.kafka_topics import NO_ID, KafkaTopic
from mainstem.protocols.kafka.messages import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
)

if TYPE_CHECKING:
    from mainstem.broker.topics.commits import Commit
    from mainstem.broker.topics.topic import Topic
    from mainstem.protocols.kafka.adapter import Request

TOPICS_MAX = 10_000  # of one request


async def create_topics(request: Request) -> Any:
    answer = CreateTopicsResponse()
    commits: list[tuple[Any, Commit[Topic]]] = []
    named = Counter(topic.name for topic in request.body.topics)
    work = request.service.broker.turns.slices(request.namespace.name)
    for asked in {topic.name: topic for topic in request.body.topics}.values():
        if work.over:  # each has files of its own
            await work.next()
        one = CreateTopicsResponse.CreatableTopicResult(name=asked.name, configs=[])
        answer.topics.append(one)
        if named[asked.name] > 1:
            one.error_code, one.error_message = ErrorCode.INVALID_REQUEST, "the topic is named twice"
            continue
        try:
            one.error_code, one.error_message = _create_one(request, asked, one, commits)
        except MainstemError as fault:
            one.error_code, one.error_message = code_of(fault), fault.message
    for one, commit in commits:  # those of a slice, at least, share a transaction
        try:
            await commit
        except MainstemError as fault:
            one.error_code, one.error_message = code_of(fault), fault.message
    request.service.refresh_groups()
    return answer


def _create_one(
    request: Request, asked: Any, answer: Any, commits: list[tuple[Any, Commit[Topic]]]
) -> tuple[ErrorCode, str | None]:
    canonical = topic_of_kafka(asked.name)
    if not may_create(request, canonical):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{request.principal.name} may not create {asked.name}"
    found = request.topics.find(asked.name)
    if found is not None and (found.view is not None or (found.topic is not None and found.topic.declared)):
        return ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{asked.name}' already exists."
    if request.namespace.creation(canonical) is not None:
        return ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{asked.name}' is being created."
    base = request.namespace.policy(canonical)
    count, fault = _partition_count(asked, base.partitions, request.service.node_id)
    if fault is not None:
        return fault
    config = checked(TOPIC_SETTINGS, {one.name: one.value or "" for one in asked.configs})
    policy = policy_for(base.with_changes({"partitions": count, "layout": "dedicated"}), config)
    if not request.body.validate_only:
        commit = request.service.broker.begin_topic(request.namespace, canonical, policy, kafka=config)
        commits.append((answer, commit))
        answer.topic_id = KafkaTopic(request.namespace, asked.name, topic=commit.value).id
    answer.num_partitions, answer.replication_factor = count, 1
    answer.configs = [
        CreateTopicsResponse.CreatableTopicConfigs(
            name=setting.name,
            value=shown_value(setting, policy, config),
            config_source=topic_origin(setting, config),
        )
        for setting in TOPIC_SETTINGS.values()
    ]
    return ErrorCode.NONE, None


def _partition_count(asked: Any, default: int, node_id: int) -> tuple[int, tuple[ErrorCode, str] | None]:
    if asked.assignments:
        if asked.num_partitions != -1 or asked.replication_factor != -1:
            return 0, (ErrorCode.INVALID_REQUEST, "give either a replica assignment or numbers, not both")
        indexes = sorted(one.partition_index for one in asked.assignments)
        if indexes != list(range(len(indexes))) or any(one.broker_ids != [node_id] for one in asked.assignments):
            return 0, (ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"there is one node, {node_id}")
        return len(indexes), None
    if asked.replication_factor not in (-1, 1):
        return 0, (
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {asked.replication_factor}: there is one node, use 1 or -1",
        )
    count = default if asked.num_partitions == -1 else asked.num_partitions
    if not 1 <= count <= PARTITIONS_MAX:
        return 0, (ErrorCode.INVALID_PARTITIONS, f"{count} partitions; possible are 1 to {PARTITIONS_MAX}")
    return count, None


async def delete_topics(request: Request) -> Any:
    body = request.body
    answer = DeleteTopicsResponse()
    written: list[Awaitable[object]] = []
    asked = [(one.name, one.topic_id) for one in body.topics] if request.version >= 6 else []
    asked += [(name, NO_ID) for name in body.topic_names]
    work = request.service.broker.turns.slices(request.namespace.name)
    for (name, topic_id), times in Counter(asked).items():
        if work.over:
            await work.next()
        one = DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=topic_id)
        answer.responses.append(one)
        if times > 1 or (name is None) is (topic_id == NO_ID):
            one.error_code = ErrorCode.INVALID_REQUEST
            one.error_message = "a topic is named once, by its name or by its id"
            continue
        try:
            one.error_code, one.error_message = _delete_one(request, name, topic_id, one, written)
        except MainstemError as fault:
            one.error_code, one.error_message = code_of(fault), fault.message
    for done in written:
        await done
    request.service.refresh_groups()
    return answer


def _delete_one(
    request: Request, name: str | None, topic_id: bytes, answer: Any, written: list[Awaitable[object]]
) -> tuple[ErrorCode, str | None]:
    topic = request.topics.find(name) if name is not None else request.topics.by_id(topic_id)
    if topic is None:
        code = absent(request, name, Action.DELETE) if name is not None else ErrorCode.UNKNOWN_TOPIC_ID
        if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return code, f"{request.principal.name} may not delete {name}"
        return code, "This server does not host this topic-partition."
    answer.name = topic.name
    if may_see(request, topic.canonical):
        answer.topic_id = topic.id
    if not may(request, Action.DELETE, topic.canonical):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{request.principal.name} may not delete {topic.name}"
    answer.topic_id = topic.id
    if topic.view is not None:
        written.append(request.service.broker.drop_view(request.namespace, topic.view.name))
    else:
        _delete_records_of(request, topic, written)
    request.service.groups.delete_topic(
        topic.name, lambda key: request.service.group_name(request.namespace, key) is not None
    )
    return ErrorCode.NONE, None


def _delete_records_of(request: Request, topic: KafkaTopic, written: list[Awaitable[object]]) -> None:
    assert topic.topic is not None
    written.append(request.service.broker.delete_topic(request.namespace, topic.topic.name))


async def create_partitions(request: Request) -> Any:
    answer = CreatePartitionsResponse()
    named = Counter(topic.name for topic in request.body.topics)
    work = request.service.broker.turns.slices(request.namespace.name)
    for asked in {topic.name: topic for topic in request.body.topics}.values():
        if work.over:  # each has files of its own
            await work.next()
        one = CreatePartitionsResponse.CreatePartitionsTopicResult(name=asked.name)
        answer.results.append(one)
        if named[asked.name] > 1:
            one.error_code, one.error_message = ErrorCode.INVALID_REQUEST, "the topic is named twice"
            continue
        try:
            one.error_code, one.error_message = await _grow_one(request, asked)
        except MainstemError as fault:
            one.error_code, one.error_message = code_of(fault), fault.message
    request.service.refresh_groups()
    return answer


async def _grow_one(request: Request, asked: Any) -> tuple[ErrorCode, str | None]:
    topic = request.topics.find(asked.name)
    if topic is None:
        return absent(request, asked.name, Action.CONFIGURE), None
    if not may(request, Action.CONFIGURE, topic.canonical):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
    if topic.view is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is a view; its partitions follow the logs it shows"
    if not topic.count < asked.count <= PARTITIONS_MAX:
        return (
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {topic.count} partition(s); {asked.count} would not be an increase"
            f" within {PARTITIONS_MAX}.",
        )
    given = [[request.service.node_id]] * (asked.count - topic.count)
    if asked.assignments is not None and [one.broker_ids for one in asked.assignments] != given:
        return (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"node {request.service.node_id} for each new partition: there is no other",
        )
    if not request.body.validate_only:
        declared = request.topics.declare(topic).topic
        assert declared is not None
        await request.service.broker.add_partitions(request.namespace, declared, asked.count)
    return ErrorCode.NONE, None


HANDLERS = {19: create_topics, 20: delete_topics, 37: create_partitions}

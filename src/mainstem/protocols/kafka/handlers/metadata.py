"""ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator: what is there, and where."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from mainstem.broker.rights.access import Action
from mainstem.model.errors import MainstemError
from mainstem.model.topic import topic_of_kafka
from mainstem.protocols.kafka.errors import ErrorCode, code_of
from mainstem.protocols.kafka.handlers.permission import (
    CLUSTER_BITS,
    INTERNAL,
    NOT_ASKED,
    is_admin,
    may,
    may_create,
    may_see,
    tell_refused,
    topic_operations,
)
from mainstem.protocols.kafka.kafka_topics import NO_ID, KafkaTopic
from mainstem.protocols.kafka.messages import (
    ApiVersionsResponse,
    DescribeClusterResponse,
    DescribeTopicPartitionsResponse,
    FindCoordinatorResponse,
    MetadataResponse,
)
from mainstem.protocols.kafka.schema import APIS

if TYPE_CHECKING:
    from mainstem.protocols.kafka.adapter import Request

CLIENT_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
TOPICS_PAGE_MAX = 2_000
AT_ONCE_MAX = 100  # topics by name; more are answered in slices
BROKERS, CONTROLLERS = 1, 2  # the endpoint types of DescribeCluster
NO_NAME_VERSION_MIN = 12  # from here on an answer may leave the name of a topic out
COORDINATED = (0, 1)  # groups and transactions
FEATURES = {"transaction.version": (0, 2), "group.version": (0, 1), "share.version": (0, 1)}


@cache
def _api_keys() -> list[Any]:
    from mainstem.protocols.kafka.adapter import HANDLERS

    return [
        ApiVersionsResponse.ApiVersion(api_key=api.key, min_version=api.first, max_version=api.last)
        for api in APIS.values()
        if api.key in HANDLERS
    ]


def api_versions(request: Request) -> Any:
    body = request.body
    if request.version >= 3 and not (
        CLIENT_NAME.fullmatch(body.client_software_name) and CLIENT_NAME.fullmatch(body.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    answer = ApiVersionsResponse(api_keys=_api_keys(), finalized_features_epoch=0)
    for name, (first, last) in FEATURES.items():
        answer.supported_features.append(
            ApiVersionsResponse.SupportedFeatureKey(
                name=name, min_version=first if request.version >= 4 else 1, max_version=last
            )
        )
        answer.finalized_features.append(
            ApiVersionsResponse.FinalizedFeatureKey(name=name, min_version_level=last, max_version_level=last)
        )
    return answer


def unsupported_api_versions() -> Any:
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_api_keys())


def metadata(request: Request) -> Any:
    answer = MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=node_id, host=host, port=port)
            for node_id, host, port in request.connection.nodes()
        ],
        cluster_id=request.service.cluster_id,
        controller_id=request.service.node_id,
    )
    body = request.body
    if request.version in range(8, 11) and body.include_cluster_authorized_operations:
        answer.cluster_authorized_operations = CLUSTER_BITS if is_admin(request) else 0
    everything = body.topics is None or (request.version == 0 and not body.topics)
    if everything:
        return _list_all(request, answer)
    elif len(body.topics) > AT_ONCE_MAX:
        return _list_many(request, answer)
    else:
        answer.topics = [_asked_topic(request, asked) for asked in body.topics]
        return _make_missing(request, answer) if _makes_missing(request, answer) else answer


async def _list_many(request: Request, answer: Any) -> Any:
    work = request.service.broker.turns.slices(request.namespace.name)
    for asked in request.body.topics:
        if work.over:
            await work.next()
        answer.topics.append(_asked_topic(request, asked))
    return await _make_missing(request, answer) if _makes_missing(request, answer) else answer


def _makes_missing(request: Request, answer: Any) -> bool:
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return request.body.allow_auto_topic_creation and any(topic.error_code == missing for topic in answer.topics)


async def _list_all(request: Request, answer: Any) -> Any:
    work = request.service.broker.turns.slices(request.namespace.name)
    for topic in request.topics.listed():
        if work.over:
            await work.next()
        if may_see(request, topic.canonical):
            answer.topics.append(_topic_answer(request, topic))
    return answer


async def _make_missing(request: Request, answer: Any) -> Any:
    """As Kafka does, and without a first answer that the topic is not there yet: we can wait until it is durable."""
    made: list[tuple[int, Any]] = []
    for index, asked in enumerate(request.body.topics):
        if answer.topics[index].error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        canonical = topic_of_kafka(asked.name)
        if not (may_create(request, canonical) or may(request, Action.PUBLISH, canonical)):
            continue
        try:
            if request.topics.find(asked.name) is not None:
                answer.topics[index] = _asked_topic(request, asked)
            elif request.topics.make(asked.name) is not None:
                made.append((index, asked))
        except MainstemError as fault:
            answer.topics[index].error_code = code_of(fault)
        await asyncio.sleep(0)  # each has files of its own: others have their turn
    if made:
        await request.service.broker.store.flush()  # they share a transaction; one that was refused stays unknown
        for index, asked in made:
            answer.topics[index] = _asked_topic(request, asked)
        request.service.refresh_groups()
    return answer


def _asked_topic(request: Request, asked: Any) -> Any:
    if asked.topic_id != NO_ID:  # Java sends an empty name beside it
        return _topic_by_id(request, asked.topic_id)
    kind = MetadataResponse.MetadataResponseTopic
    name = asked.name
    if name is None:
        return kind(error_code=ErrorCode.INVALID_REQUEST, name="")
    try:
        canonical, topic = topic_of_kafka(name), request.topics.shown(name)
    except MainstemError as fault:
        return kind(error_code=code_of(fault), name=name)
    if not may_see(request, canonical):
        tell_refused(request, "describe", canonical)
        return kind(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
    if topic is None:
        return kind(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
    return _topic_answer(request, topic)


def _topic_by_id(request: Request, topic_id: bytes) -> Any:
    """Who may not see the topic is not told its name."""
    topic = request.topics.shown(topic_id)
    if topic is not None and may_see(request, topic.canonical):
        return _topic_answer(request, topic)
    code = ErrorCode.UNKNOWN_TOPIC_ID if topic is None else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    name = None if request.version >= NO_NAME_VERSION_MIN else ""
    return MetadataResponse.MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id)


def _topic_answer(request: Request, topic: KafkaTopic) -> Any:
    kind = MetadataResponse.MetadataResponsePartition
    partitions = [
        kind(
            partition_index=index,
            leader_id=request.service.node_id,
            leader_epoch=topic.epoch(index),
            replica_nodes=[request.service.node_id],
            isr_nodes=[request.service.node_id],
        )
        for index in range(topic.count)
    ]
    asked = request.version >= 8 and request.body.include_topic_authorized_operations
    return MetadataResponse.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.canonical.startswith(INTERNAL),
        partitions=partitions,
        topic_authorized_operations=topic_operations(request, topic.canonical) if asked else NOT_ASKED,
    )


def describe_cluster(request: Request) -> Any:
    answer = DescribeClusterResponse(
        cluster_id=request.service.cluster_id,
        controller_id=request.service.node_id,
        endpoint_type=BROKERS,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(broker_id=node_id, host=host, port=port)
            for node_id, host, port in request.connection.nodes()
        ],
    )
    if request.body.endpoint_type not in (0, BROKERS):
        known = request.body.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this is a broker; there are no separate controllers here",
        )
    if request.body.include_cluster_authorized_operations:
        answer.cluster_authorized_operations = CLUSTER_BITS if is_admin(request) else 0
    return answer


def describe_topic_partitions(request: Request) -> Any:
    body = request.body
    seen = (topic.name for topic in request.topics.listed() if may_see(request, topic.canonical))
    names = [asked.name for asked in body.topics] or list(seen)
    names = sorted(set(names))
    answer = DescribeTopicPartitionsResponse()
    first = 0
    if body.cursor is not None:
        names = [name for name in names if name >= body.cursor.topic_name]
        first = max(body.cursor.partition_index, 0) if names and names[0] == body.cursor.topic_name else 0
    room = max(1, min(body.response_partition_limit, TOPICS_PAGE_MAX))
    for name in names:
        if room <= 0:
            answer.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=first)
            break
        one, cut = _described_topic(request, name, first, room)
        answer.topics.append(one)
        room -= max(1, len(one.partitions))
        if cut:
            answer.next_cursor = DescribeTopicPartitionsResponse.Cursor(
                topic_name=name, partition_index=first + len(one.partitions)
            )
            break
        first = 0
    return answer


def _described_topic(request: Request, name: str, first: int, room: int) -> tuple[Any, bool]:
    kind = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    try:
        topic = request.topics.find(name)
    except MainstemError as fault:
        return kind(error_code=code_of(fault), name=name), False
    if topic is None or not may_see(request, topic.canonical):
        return kind(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name), False
    last = min(topic.count, first + room)
    partitions = [
        DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
            partition_index=index,
            leader_id=request.service.node_id,
            leader_epoch=topic.epoch(index),
            replica_nodes=[request.service.node_id],
            isr_nodes=[request.service.node_id],
            eligible_leader_replicas=[],  # null breaks Java
            last_known_elr=[],
        )
        for index in range(first, last)
    ]
    operations = topic_operations(request, topic.canonical)
    described = kind(name=topic.name, topic_id=topic.id, partitions=partitions, topic_authorized_operations=operations)
    described.is_internal = topic.canonical.startswith(INTERNAL)
    return described, last < topic.count


def find_coordinator(request: Request) -> Any:
    """One node coordinates everything."""
    host, port = request.connection.dialled()
    body = request.body
    found: dict[str, Any] = {"node_id": request.service.node_id, "host": host, "port": port, "error_message": None}
    if body.key_type not in COORDINATED:
        why = f"nothing of type {body.key_type} is coordinated here for clients"
        found = {"node_id": -1, "port": -1, "error_code": ErrorCode.INVALID_REQUEST, "error_message": why}
    if request.version < 4:
        return FindCoordinatorResponse(**found)
    return FindCoordinatorResponse(
        coordinators=[FindCoordinatorResponse.Coordinator(key=key, **found) for key in body.coordinator_keys]
    )


HANDLERS = {
    18: api_versions,
    3: metadata,
    60: describe_cluster,
    75: describe_topic_partitions,
    10: find_coordinator,
}

"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: finding and moving places in a partition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from mainstem.broker.rights.access import Action
from mainstem.model.errors import MainstemError
from mainstem.protocols.kafka.errors import ErrorCode, code_of
from mainstem.protocols.kafka.handlers.permission import absent, denied, may, may_see
from mainstem.protocols.kafka.kafka_topics import KafkaTopic, Source
from mainstem.protocols.kafka.messages import (
    DeleteRecordsResponse,
    ListOffsetsResponse,
    OffsetForLeaderEpochResponse,
)
from mainstem.protocols.kafka.schema import NEVER

if TYPE_CHECKING:
    from mainstem.broker.topics.topic import Partition
    from mainstem.protocols.kafka.adapter import Request

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
READ_COMMITTED = 1
SPECIAL_SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


async def list_offsets(request: Request) -> Any:
    answer = ListOffsetsResponse()
    for asked in request.body.topics:
        topic = _find(request, asked.name)
        one = ListOffsetsResponse.ListOffsetsTopicResponse(name=asked.name)
        answer.topics.append(one)
        for part in asked.partitions:
            one.partitions.append(await _list_one(request, topic, part))
    return answer


def _find(request: Request, name: str) -> KafkaTopic | ErrorCode:
    try:
        topic = request.topics.shown(name)
    except MainstemError as fault:
        return code_of(fault)
    if topic is None:
        return absent(request, name)
    return topic if may_see(request, topic.canonical) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def _list_one(request: Request, topic: KafkaTopic | ErrorCode, part: Any) -> Any:
    answer = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=part.partition_index)
    code = _refusal(topic, part.partition_index, part.current_leader_epoch)
    if code is ErrorCode.NONE and part.timestamp < 0 and SPECIAL_SINCE.get(part.timestamp, NEVER) > request.version:
        code = ErrorCode.UNSUPPORTED_VERSION
    if code is not ErrorCode.NONE or isinstance(topic, ErrorCode):
        answer.error_code = code
        return answer
    source = topic.source(part.partition_index, denied(request, topic))
    answer.leader_epoch = topic.epoch(part.partition_index)
    if source is None:
        answer.offset = 0 if part.timestamp in (LATEST, EARLIEST, EARLIEST_LOCAL) else -1
        return answer
    try:
        answer.offset, answer.timestamp = await _place(request, topic, part.partition_index, source, part.timestamp)
    except MainstemError as fault:
        answer.error_code = code_of(fault)
    if answer.offset < 0:
        answer.leader_epoch = -1
    return answer


def _refusal(topic: KafkaTopic | ErrorCode, index: int, leader_epoch: int) -> ErrorCode:
    if isinstance(topic, ErrorCode):
        return topic
    if not 0 <= index < topic.count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if leader_epoch >= 0:
        epoch = topic.epoch(index)
        if leader_epoch != epoch:
            return ErrorCode.FENCED_LEADER_EPOCH if leader_epoch < epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE


async def _place(request: Request, topic: KafkaTopic, index: int, source: Source, timestamp: int) -> tuple[int, int]:
    if timestamp == LATEST:
        return _latest(request, topic, index, source), -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return source.start_offset, -1
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1
    if timestamp == MAX_TIMESTAMP:
        return await asyncio.to_thread(source.newest) or (-1, -1)
    return await asyncio.to_thread(source.find_time, timestamp) or (-1, -1)


def _latest(request: Request, topic: KafkaTopic, index: int, source: Source) -> int:
    stable, log = source.stable_offset, topic.log(index)
    if request.body.isolation_level != READ_COMMITTED or topic.topic is None or log is None or log.index is not None:
        return stable
    return min(request.service.producers.of(log, topic.topic.id).stable_end(stable), stable)


def offset_for_leader_epoch(request: Request) -> Any:
    answer = OffsetForLeaderEpochResponse()
    for asked in request.body.topics:
        topic = _find(request, asked.topic)
        one = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=asked.topic)
        answer.topics.append(one)
        for part in asked.partitions:
            result = OffsetForLeaderEpochResponse.EpochEndOffset(partition=part.partition)
            one.partitions.append(result)
            result.error_code = _refusal(topic, part.partition, part.current_leader_epoch)
            if result.error_code != ErrorCode.NONE or isinstance(topic, ErrorCode):
                continue
            log, source = topic.log(part.partition), topic.source(part.partition)
            if log is None or source is None or not 0 <= part.leader_epoch <= log.epoch:
                continue
            # No offset is ever given twice, so whatever epoch a client saw, it may go on up to the end.
            result.leader_epoch, result.end_offset = part.leader_epoch, source.stable_offset
    return answer


async def delete_records(request: Request) -> Any:
    """Moves the start of partitions; the batch that an offset lies in stays, and is not served below it."""
    answer = DeleteRecordsResponse()
    deleting: list[tuple[Any, Partition, Awaitable[object]]] = []
    for asked in request.body.topics:
        topic = _find(request, asked.name)
        one = DeleteRecordsResponse.DeleteRecordsTopicResult(name=asked.name)
        answer.topics.append(one)
        for part in asked.partitions:
            result = DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=part.partition_index, low_watermark=-1
            )
            one.partitions.append(result)
            try:
                result.error_code = _delete_one(request, topic, part, result, deleting)
            except MainstemError as fault:
                result.error_code = code_of(fault)
    for result, partition, deleted in deleting:
        try:
            await deleted
            result.low_watermark = partition.start_offset
        except MainstemError as fault:
            result.error_code = code_of(fault)
    return answer


def _delete_one(
    request: Request,
    topic: KafkaTopic | ErrorCode,
    part: Any,
    result: Any,
    deleting: list[tuple[Any, Partition, Awaitable[object]]],
) -> ErrorCode:
    if isinstance(topic, ErrorCode):
        return topic
    if not may(request, Action.DELETE, topic.canonical):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic.view is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    partition = topic.partition(part.partition_index)
    if partition is None or topic.topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker, index = request.service.broker, part.partition_index
    deleting.append((result, partition, broker.delete_records(request.namespace, topic.topic, index, part.offset)))
    return ErrorCode.NONE


HANDLERS = {2: list_offsets, 23: offset_for_leader_epoch, 21: delete_records}

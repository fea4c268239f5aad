"""DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets: where a share group stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.broker.queues.bindings import NOW
from mainstem.broker.queues.queue import Queue
from mainstem.broker.rights.access import Action
from mainstem.codec.batch import FRAME_HEAD_SIZE, read_frame_head
from mainstem.log.committed import read_extent, taken_stamps
from mainstem.model.errors import MainstemError
from mainstem.protocols.kafka.errors import ErrorCode, code_of
from mainstem.protocols.kafka.handlers.permission import absent, may_group, may_see, of_group
from mainstem.protocols.kafka.handlers.share import find_topic, may_take
from mainstem.protocols.kafka.kafka_topics import KafkaTopic, Source
from mainstem.protocols.kafka.messages import (
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponse,
)
from mainstem.protocols.kafka.shares import queue_name, stamp_of_offset

if TYPE_CHECKING:
    from mainstem.log.log import Log
    from mainstem.protocols.kafka.adapter import Request


def describe_offsets(request: Request) -> Any:
    answer = DescribeShareGroupOffsetsResponse()
    shares = request.service.shares
    for asked in request.body.groups:
        group = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id)
        answer.groups.append(group)
        if not may_group(request, Action.DESCRIBE, asked.group_id):
            group.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            continue
        held = shares.queues_of(request.namespace, asked.group_id)
        wanted = {t.topic_name: t.partitions for t in asked.topics} if asked.topics is not None else dict.fromkeys(held)
        for name, partitions in wanted.items():
            code, topic = _shown_topic(request, asked.group_id, name)
            if code is not ErrorCode.NONE and asked.topics is None:
                continue  # all that the caller may see
            line = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic(
                topic_name=name, topic_id=topic.id if topic is not None else bytes(16)
            )
            group.topics.append(line)
            queue = shares.queue_of(request.namespace, asked.group_id, name)
            for index in partitions if partitions is not None else range(topic.count if topic is not None else 0):
                line.partitions.append(_described(topic, index, queue, code))
    return answer


def _shown_topic(request: Request, group_id: str, name: str) -> tuple[ErrorCode, KafkaTopic | None]:
    """Of a queue that the group joins, the right on the group says enough."""
    topic = find_topic(request, group_id, name)
    joins = name == group_id and request.service.broker.queues.of(request.namespace).find(name) is not None
    try:
        if topic is not None and (joins or may_see(request, topic.canonical)):
            return ErrorCode.NONE, topic
        return (absent(request, name) if topic is None else ErrorCode.TOPIC_AUTHORIZATION_FAILED), None
    except MainstemError as fault:
        return code_of(fault), None


def _taken_topic(request: Request, group_id: str, name: str) -> tuple[ErrorCode, KafkaTopic | None]:
    """Where the group may be made to start over: what its caller may consume."""
    code, topic = _shown_topic(request, group_id, name)
    if topic is not None and not may_take(request, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
    return code, topic


def _described(topic: KafkaTopic | None, index: int, queue: Queue | None, refusal: ErrorCode) -> Any:
    one = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition(
        partition_index=index, start_offset=-1
    )
    if topic is None or not 0 <= index < topic.count:
        one.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is not None else refusal
        return one
    log, source = topic.log(index), topic.source(index)
    if queue is None or log is None or source is None:
        return one
    floor = min(level.cursor.floor for level in queue.levels)
    behind = floor > log.last_stamp
    one.start_offset = source.stable_offset if behind else _offset_at(log, source, floor)
    one.leader_epoch = log.epoch
    one.lag = queue.ready + queue.unacked if topic.count == 1 else -1  # a queue counts all partitions together
    return one


def _offset_at(log: Log, source: Source, stamp: int) -> int:
    """Of the first record from there on, also in the midst of a batch, of a transaction, or of what its marker shows."""
    first = log.offset_of_stamp(stamp)
    piece = log.read_anywhere(first, 1) if log.hidden is not None else None
    if piece is not None:
        head = read_frame_head(piece.data, 0, log.id)
        batch, within = piece.data[FRAME_HEAD_SIZE : head.size], stamp - head.stamp
        if 0 <= within < head.count:
            return head.base_offset + within
        extent = read_extent(batch) if 0 < within <= taken_stamps(batch) else None
        if extent is not None:
            return extent[2] + within - 1
    records, _ = source.records(first, 1)
    return next((record.offset for record in records if record.stamp >= stamp), first)


async def alter_offsets(request: Request) -> Any:
    """The queue starts over. All partitions begin at one stamp: the earliest of those asked for."""
    body, shares = request.body, request.service.shares
    answer = AlterShareGroupOffsetsResponse()
    group = request.service.groups.find(request.group_key(body.group_id))
    if group is not None and group.members:
        return AlterShareGroupOffsetsResponse(
            error_code=ErrorCode.NON_EMPTY_GROUP, error_message=f"{body.group_id} has members; stop them first"
        )
    request.service.groups.share(request.group_key(body.group_id))
    queues = request.service.broker.queues.of(request.namespace)
    for asked in body.topics:
        code, topic = _taken_topic(request, body.group_id, asked.topic_name)
        line = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic(
            topic_name=asked.topic_name, topic_id=topic.id if topic is not None else bytes(16)
        )
        answer.responses.append(line)
        if topic is not None:
            stamps = [stamp_of_offset(topic, part.partition_index, part.start_offset) for part in asked.partitions]
            start = min((stamp for stamp in stamps if stamp != NOW), default=NOW)
            old = queues.find(queue_name(body.group_id, asked.topic_name))
            if old is not None:
                queues.delete(old)
            shares.make_queue(request.namespace, body.group_id, topic, start)
        for part in asked.partitions:
            kind = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition
            line.partitions.append(kind(partition_index=part.partition_index, error_code=code))
    await request.service.broker.store.flush()
    return answer


async def delete_offsets(request: Request) -> Any:
    body = request.body
    answer = DeleteShareGroupOffsetsResponse()
    group = request.service.groups.find(request.group_key(body.group_id))
    if group is not None and group.members:
        return DeleteShareGroupOffsetsResponse(
            error_code=ErrorCode.NON_EMPTY_GROUP, error_message=f"{body.group_id} has members; stop them first"
        )
    queues = request.service.broker.queues.of(request.namespace)
    for asked in body.topics:
        code, topic = _taken_topic(request, body.group_id, asked.topic_name)
        refused = code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        queue = queues.find(queue_name(body.group_id, asked.topic_name)) if not refused else None
        if queue is not None:
            queues.delete(queue)
        elif not refused:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer.responses.append(
            DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic(
                topic_name=asked.topic_name,
                topic_id=topic.id if topic is not None else bytes(16),
                error_code=ErrorCode.NONE if queue is not None else code,
            )
        )
    await request.service.broker.store.flush()
    return answer


HANDLERS = {
    90: describe_offsets,
    91: of_group(Action.CONFIGURE, alter_offsets, AlterShareGroupOffsetsResponse),
    92: of_group(Action.DELETE, delete_offsets, DeleteShareGroupOffsetsResponse),
}

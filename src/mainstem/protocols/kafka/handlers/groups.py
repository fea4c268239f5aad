"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup, ConsumerGroupHeartbeat; OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.broker.groups.classic import ClassicGroup, Join, Joined, Synced
from mainstem.broker.groups.consumer import JOIN_EPOCH, STATIC_LEAVE_EPOCH, Beat, BeatAnswer, ConsumerGroup
from mainstem.broker.groups.fault import GroupFault
from mainstem.broker.groups.registry import METADATA_BYTES_MAX, Commit, Groups
from mainstem.broker.rights.access import Action
from mainstem.model.errors import MainstemError
from mainstem.model.topic import topic_of_kafka
from mainstem.protocols.kafka.errors import ErrorCode, code_of, code_of_fault
from mainstem.protocols.kafka.handlers import mixed_groups
from mainstem.protocols.kafka.handlers.permission import absent, may, may_group, may_see, may_see_each, of_group
from mainstem.protocols.kafka.kafka_topics import GroupTopics, KafkaTopic
from mainstem.protocols.kafka.messages import (
    ConsumerGroupHeartbeatResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)
from mainstem.protocols.kafka.subscription import subscribed_topics
from mainstem.protocols.kafka.tickets import when_durable

if TYPE_CHECKING:
    from mainstem.protocols.kafka.adapter import Request

IDS_VERSION_MIN = 10
MEMBER_ID_VERSION_MIN = 1  # of ConsumerGroupHeartbeat: clients make their ids themselves


def _classic(request: Request) -> tuple[GroupFault, ClassicGroup | None]:
    fault = Groups.check_id(request.body.group_id)
    if fault is not GroupFault.NONE:
        return fault, None
    group = request.service.groups.classic(request.group_key(request.body.group_id))
    return (GroupFault.NONE, group) if group is not None else (GroupFault.INCONSISTENT_GROUP_PROTOCOL, None)


def _known_classic(request: Request) -> tuple[GroupFault, ClassicGroup | None]:
    fault = Groups.check_id(request.body.group_id)
    group = request.service.groups.find(request.group_key(request.body.group_id))
    if fault is GroupFault.NONE and not isinstance(group, ClassicGroup):
        fault = GroupFault.UNKNOWN_MEMBER_ID
    return fault, group if isinstance(group, ClassicGroup) else None


def _mixed(request: Request) -> ConsumerGroup | None:
    """The KIP-848 group that this request of a classic member is for, if it is."""
    return request.service.groups.mixed(request.group_key(request.body.group_id))


def join_group(request: Request) -> Any:
    body = request.body
    ask = Join(
        body.member_id,
        body.group_instance_id,
        request.client_id,
        request.host,
        body.session_timeout_ms,
        body.rebalance_timeout_ms if body.rebalance_timeout_ms >= 0 else body.session_timeout_ms,
        body.protocol_type,
        [(protocol.name, protocol.metadata) for protocol in body.protocols],
        must_know_id=request.version >= 4,
        static_may_skip=request.version >= 9,
    )

    def reply(joined: Joined) -> None:
        members = [
            JoinGroupResponse.JoinGroupResponseMember(member_id=member, group_instance_id=instance, metadata=metadata)
            for member, instance, metadata in joined.members
        ]
        request.reply(
            JoinGroupResponse(
                error_code=code_of_fault(joined.fault),
                generation_id=joined.generation,
                protocol_type=joined.protocol_type,
                protocol_name=joined.protocol if joined.protocol is not None or request.version >= 7 else "",
                leader=joined.leader,
                skip_assignment=joined.skip_assignment,
                member_id=joined.member_id,
                members=members,
            )
        )

    mixed = _mixed(request)
    if mixed is not None:
        reply(mixed_groups.join(request, mixed, ask))
        return None
    fault, group = _classic(request)
    if group is None:
        return JoinGroupResponse(error_code=code_of_fault(fault), member_id=body.member_id)
    group.join(ask, request.service.monotonic_ms(), reply)
    request.service.groups.keep(group)
    return None


def sync_group(request: Request) -> Any:
    body = request.body
    if (mixed := _mixed(request)) is not None:
        return mixed_groups.sync(request, mixed)
    fault, group = _known_classic(request)
    if group is None:
        return SyncGroupResponse(error_code=code_of_fault(fault))

    def reply(synced: Synced) -> None:
        request.reply(
            SyncGroupResponse(
                error_code=code_of_fault(synced.fault),
                protocol_type=synced.protocol_type,
                protocol_name=synced.protocol,
                assignment=synced.assignment,
            )
        )

    group.sync(
        body.member_id,
        body.group_instance_id,
        body.generation_id,
        body.protocol_type,
        body.protocol_name,
        {one.member_id: one.assignment for one in body.assignments},
        request.service.monotonic_ms(),
        reply,
    )
    request.service.groups.keep(group)
    return None


def heartbeat(request: Request) -> Any:
    body = request.body
    if (mixed := _mixed(request)) is not None:
        return HeartbeatResponse(error_code=code_of_fault(mixed_groups.heartbeat(request, mixed)))
    fault, group = _known_classic(request)
    if group is not None:
        now_ms = request.service.monotonic_ms()
        fault = group.heartbeat(body.member_id, body.group_instance_id, body.generation_id, now_ms)
    return HeartbeatResponse(error_code=code_of_fault(fault))


def leave_group(request: Request) -> Any:
    body = request.body
    mixed = _mixed(request)
    fault, classic = _known_classic(request)
    group = mixed or classic

    def leave(member_id: str, instance_id: str | None) -> GroupFault:
        if mixed is not None:
            return mixed_groups.leave(request, mixed, member_id, instance_id)
        if classic is None:
            return GroupFault.UNKNOWN_MEMBER_ID
        return classic.leave(member_id, instance_id, request.service.monotonic_ms())

    if fault is GroupFault.INVALID_GROUP_ID:
        return LeaveGroupResponse(error_code=code_of_fault(fault))
    if request.version < 3:
        answer = LeaveGroupResponse(error_code=code_of_fault(leave(body.member_id, None)))
    else:
        answer = LeaveGroupResponse()
    for one in body.members:
        fault = leave(one.member_id, one.group_instance_id)
        answer.members.append(
            LeaveGroupResponse.MemberResponse(
                member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=code_of_fault(fault)
            )
        )
    if group is not None:
        request.service.groups.keep(group)
    return answer


def consumer_group_heartbeat(request: Request) -> Any:
    body = request.body
    service = request.service
    fault = Groups.check_id(body.group_id)
    if fault is not GroupFault.NONE:
        return ConsumerGroupHeartbeatResponse(error_code=code_of_fault(fault))
    why = _malformed_beat(body, request.version)
    if why is not None:
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=why)
    if not may_see_each(request, body.subscribed_topic_names):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    key = request.group_key(body.group_id)
    if body.member_epoch != 0 and service.groups.find(key) is None:
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    group = service.groups.consumer(key)
    if group is None and body.member_epoch == 0:
        group = mixed_groups.upgraded(request, key)
    if group is None:
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=f"{body.group_id} is not a group of consumers"
        )
    beat = Beat(
        body.member_id,
        body.member_epoch,
        body.instance_id,
        body.rack_id,
        body.rebalance_timeout_ms,
        body.subscribed_topic_names,
        body.subscribed_topic_regex,
        body.server_assignor,
        None
        if body.topic_partitions is None
        else {(one.topic_id, index) for one in body.topic_partitions for index in one.partitions},
        request.client_id,
        request.host,
        request.principal,
    )
    answer = group.heartbeat(beat, GroupTopics(request.topics), service.monotonic_ms())
    service.groups.keep(group)
    return beat_response(ConsumerGroupHeartbeatResponse, answer)


def _malformed_beat(body: Any, version: int) -> str | None:
    """What a heartbeat must say, as Kafka sees it: all when it joins, and nothing that is empty."""
    if not body.member_id and version >= MEMBER_ID_VERSION_MIN:
        return "MemberId can't be empty."
    if body.instance_id == "" or body.rack_id == "":
        return "InstanceId and RackId can't be empty."
    if body.member_epoch == JOIN_EPOCH:
        if body.rebalance_timeout_ms == -1:
            return "RebalanceTimeoutMs must be provided in first request."
        if body.topic_partitions is None or body.topic_partitions:
            return "TopicPartitions must be empty when (re-)joining."
        if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
            return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    if body.member_epoch == STATIC_LEAVE_EPOCH and body.instance_id is None:
        return "InstanceId can't be null."
    return f"MemberEpoch is {body.member_epoch}." if body.member_epoch < STATIC_LEAVE_EPOCH else None


def beat_response(kind: type[Any], answer: BeatAnswer) -> Any:
    """A heartbeat's answer, in the words of either kind of group."""
    response = kind(
        error_code=code_of_fault(answer.fault),
        error_message=answer.message,
        member_id=answer.member_id or None,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.heartbeat_ms,
    )
    if answer.assignment is not None:
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, index in sorted(answer.assignment):
            by_topic.setdefault(topic_id, []).append(index)
        response.assignment = kind.Assignment(
            topic_partitions=[
                kind.TopicPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in by_topic.items()
            ]
        )
    return response


# -- offsets -----------------------------------------------------------------------------------------------------------


def offset_commit(request: Request) -> Any:
    body, service = request.body, request.service
    key = request.group_key(body.group_id)
    fault = Groups.check_id(body.group_id)
    allowed = fault is not GroupFault.NONE or may_group(request, Action.CONSUME, body.group_id)
    if fault is GroupFault.NONE and allowed:
        fault = service.groups.may_commit(
            key, body.member_id, body.group_instance_id, body.generation_id_or_member_epoch, service.monotonic_ms()
        )
    if fault is GroupFault.STALE_MEMBER_EPOCH and request.version < 9:
        fault = GroupFault.ILLEGAL_GENERATION
    answer = OffsetCommitResponse()
    code = code_of_fault(fault) if allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED
    commits = collect_commits(request, answer, OffsetCommitResponse, code)
    ticket = service.groups.commit(key, commits) if commits else None
    return when_durable(request, answer, ticket, _fail_commit)


def _fail_commit(answer: Any, code: ErrorCode) -> None:
    for topic in answer.topics:
        for one in topic.partitions:
            one.error_code = one.error_code or code


def collect_commits(request: Request, answer: Any, response: Any, code: ErrorCode) -> dict[tuple[str, int], Commit]:
    """The commits of a request by (topic, partition); the answer gets a line for each, refused or not."""
    now_ms = request.service.now_ms()
    name = response.__name__
    topic_kind, partition_kind = getattr(response, f"{name}Topic"), getattr(response, f"{name}Partition")
    commits: dict[tuple[str, int], Commit] = {}
    for asked in request.body.topics:
        topic, refusal = _commit_topic(request, asked)
        line = topic_kind(name=asked.name)
        if hasattr(line, "topic_id"):
            line.topic_id = asked.topic_id
        answer.topics.append(line)
        for part in asked.partitions:
            metadata = part.committed_metadata or ""
            error = code or refusal
            if error == ErrorCode.NONE and (topic is None or not 0 <= part.partition_index < topic.count):
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if error == ErrorCode.NONE and len(metadata.encode()) > METADATA_BYTES_MAX:
                error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            line.partitions.append(partition_kind(partition_index=part.partition_index, error_code=error))
            if error == ErrorCode.NONE and topic is not None:
                commits[topic.name, part.partition_index] = Commit(
                    part.committed_offset, part.committed_leader_epoch, metadata, now_ms
                )
    return commits


def _commit_topic(request: Request, asked: Any) -> tuple[KafkaTopic | None, ErrorCode]:
    by_id = request.key == 8 and request.version >= IDS_VERSION_MIN
    try:
        if by_id:
            topic = request.topics.by_id(asked.topic_id)
        else:
            topic = request.topics.find(asked.name)
        if topic is None:
            return None, ErrorCode.UNKNOWN_TOPIC_ID if by_id else absent(request, asked.name, Action.CONSUME)
    except MainstemError as fault:
        return None, code_of(fault)
    if not may(request, Action.CONSUME, topic.canonical):
        return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return topic, ErrorCode.NONE


def offset_fetch(request: Request) -> Any:
    body = request.body
    if request.version >= 8:
        return OffsetFetchResponse(groups=[_fetch_group(request, asked) for asked in body.groups])
    answer = OffsetFetchResponse()
    if not _may_fetch(request, body.group_id):
        answer.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return answer
    kinds = (OffsetFetchResponse.OffsetFetchResponseTopic, OffsetFetchResponse.OffsetFetchResponsePartition)
    answer.topics = _fetch_topics(request, body.group_id, body.topics, kinds)
    return answer


def _may_fetch(request: Request, group_id: str) -> bool:
    return may_group(request, Action.DESCRIBE, group_id) or may_group(request, Action.CONSUME, group_id)


def _fetch_group(request: Request, asked: Any) -> Any:
    answer = OffsetFetchResponse.OffsetFetchResponseGroup(group_id=asked.group_id)
    if not _may_fetch(request, asked.group_id):
        answer.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return answer
    group = request.service.groups.find(request.group_key(asked.group_id))
    if group is not None and group.kind == "consumer" and asked.member_id is not None and asked.member_epoch >= 0:
        fault = group.check_commit(asked.member_id, None, asked.member_epoch, request.service.monotonic_ms())
        if fault is not GroupFault.NONE:
            answer.error_code = code_of_fault(fault)
            return answer
    kinds = (OffsetFetchResponse.OffsetFetchResponseTopics, OffsetFetchResponse.OffsetFetchResponsePartitions)
    answer.topics = _fetch_topics(request, asked.group_id, asked.topics, kinds)
    return answer


def _fetch_topics(request: Request, group_id: str, topics: list[Any] | None, kinds: tuple[Any, Any]) -> list[Any]:
    """What is committed for the topics asked (None: all). An unknown group or partition is offset -1, not an error."""
    topic_kind, partition_kind = kinds
    groups, key = request.service.groups, request.group_key(group_id)
    held = groups.offsets.get(key, {})
    wanted: list[tuple[str, bytes, list[int], ErrorCode]] = []
    if topics is None:
        by_topic: dict[str, list[int]] = {}
        for name, index in held:
            by_topic.setdefault(name, []).append(index)
        for name, indexes in sorted(by_topic.items()):
            wanted.append((name, _topic_id(request, name), sorted(indexes), ErrorCode.NONE))
    for asked in topics or ():
        name, topic_id, code = asked.name, getattr(asked, "topic_id", bytes(16)), ErrorCode.NONE
        if request.version >= IDS_VERSION_MIN:
            topic = request.topics.by_id(topic_id)
            name, code = (topic.name, code) if topic is not None else ("", ErrorCode.UNKNOWN_TOPIC_ID)
        wanted.append((name, topic_id, asked.partition_indexes, code))
    answers = []
    for name, topic_id, indexes, code in wanted:
        line = topic_kind(name=name)
        if hasattr(line, "topic_id"):
            line.topic_id = topic_id
        answers.append(line)
        for index in indexes:
            one = partition_kind(partition_index=index, committed_offset=-1, metadata="", error_code=code)
            line.partitions.append(one)
            if code == ErrorCode.NONE and request.body.require_stable and groups.is_unstable(key, (name, index)):
                one.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
            elif code == ErrorCode.NONE and (commit := held.get((name, index))) is not None:
                one.committed_offset, one.metadata = commit.offset, commit.metadata
                one.committed_leader_epoch = commit.leader_epoch
    return answers


def _topic_id(request: Request, name: str) -> bytes:
    try:
        topic = request.topics.find(name)
    except MainstemError:
        return bytes(16)
    return topic.id if topic is not None else bytes(16)


def offset_delete(request: Request) -> Any:
    body, groups = request.body, request.service.groups
    key = request.group_key(body.group_id)
    group = groups.find(key)
    if group is None:
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    used = subscribed_topics(group)
    answer = OffsetDeleteResponse()
    ats: list[tuple[str, int]] = []
    for asked in body.topics:
        line = OffsetDeleteResponse.OffsetDeleteResponseTopic(name=asked.name)
        answer.topics.append(line)
        for part in asked.partitions:
            at = asked.name, part.partition_index
            code = _deletion_refusal(request, *at, held=at in groups.offsets.get(key, {}))
            if code is ErrorCode.NONE and (used is None or asked.name in used):
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if code is ErrorCode.NONE:
                ats.append(at)
            line.partitions.append(
                OffsetDeleteResponse.OffsetDeleteResponsePartition(
                    partition_index=part.partition_index, error_code=code
                )
            )
    return when_durable(request, answer, groups.delete_offsets(key, ats), _fail_commit)


def _deletion_refusal(request: Request, name: str, index: int, *, held: bool) -> ErrorCode:
    """What was committed may be forgotten, also of a topic that is gone."""
    try:
        topic, canonical = request.topics.find(name), topic_of_kafka(name)
    except MainstemError as fault:
        return code_of(fault)
    if not may_see(request, canonical):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    known = held or (topic is not None and 0 <= index < topic.count)
    return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


HANDLERS = {
    11: of_group(Action.CONSUME, join_group, JoinGroupResponse),
    14: of_group(Action.CONSUME, sync_group, SyncGroupResponse),
    12: of_group(Action.CONSUME, heartbeat, HeartbeatResponse),
    13: of_group(Action.CONSUME, leave_group, LeaveGroupResponse),
    68: of_group(Action.CONSUME, consumer_group_heartbeat, ConsumerGroupHeartbeatResponse),
    8: offset_commit,
    9: offset_fetch,
    47: of_group(Action.DELETE, offset_delete, OffsetDeleteResponse),
}

"""DescribeGroups, ListGroups, DeleteGroups, ConsumerGroupDescribe: groups as administrators see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.broker.groups.classic import ClassicGroup, State
from mainstem.broker.groups.consumer import ConsumerGroup
from mainstem.broker.groups.fault import GroupFault
from mainstem.broker.groups.registry import Group
from mainstem.broker.rights.access import Action, Kind
from mainstem.protocols.kafka.errors import ErrorCode, code_of_fault
from mainstem.protocols.kafka.handlers.permission import GROUP_BITS, NOT_ASKED, may_group
from mainstem.protocols.kafka.messages import (
    ConsumerGroupDescribeResponse,
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    ListGroupsResponse,
)
from mainstem.protocols.kafka.tickets import when_durable

if TYPE_CHECKING:
    from mainstem.protocols.kafka.adapter import Request

MEMBER_TYPE_CLASSIC, MEMBER_TYPE_CONSUMER = 0, 1


async def describe_groups(request: Request) -> Any:
    answer, work = DescribeGroupsResponse(), request.service.broker.turns.slices(request.namespace.name)
    for group_id in request.body.groups:
        if work.over:
            await work.next()
        if not may_group(request, Action.DESCRIBE, group_id):
            answer.groups.append(
                DescribeGroupsResponse.DescribedGroup(
                    group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
                )
            )
            continue
        group = request.service.groups.find(request.group_key(group_id))
        one = _described(group_id, group, request.version)
        if request.body.include_authorized_operations:
            one.authorized_operations = GROUP_BITS
        answer.groups.append(one)
    return answer


def _described(group_id: str, group: Group | None, version: int) -> Any:
    kind = DescribeGroupsResponse.DescribedGroup
    if not isinstance(group, ClassicGroup):
        missing = kind(group_id=group_id, group_state=State.DEAD)
        if version >= 6:
            missing.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            missing.error_message = f"there is no classic group {group_id}"
        return missing
    stable = group.state is State.STABLE
    members = [
        DescribeGroupsResponse.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol) if stable else b"",
            member_assignment=member.assignment if stable else b"",
        )
        for member in group.members.values()
    ]
    return kind(
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=group.protocol or "" if stable else "",
        members=members,
    )


def list_groups(request: Request) -> Any:
    body = request.body
    states = {state.lower() for state in body.states_filter}
    types = {kind.lower() for kind in body.types_filter}
    answer = ListGroupsResponse()
    for key, group in request.service.groups.groups.items():
        group_id = request.service.group_name(request.namespace, key)
        if group_id is None or not may_group(request, Action.DESCRIBE, group_id):
            continue
        if (states and group.state.lower() not in states) or (types and group.kind not in types):
            continue
        protocol = (group.protocol_type or "") if isinstance(group, ClassicGroup) else group.kind
        answer.groups.append(
            ListGroupsResponse.ListedGroup(
                group_id=group_id,
                protocol_type=protocol,
                group_state=group.state,
                group_type=group.kind,
            )
        )
    return answer


def delete_groups(request: Request) -> Any:
    answer = DeleteGroupsResponse()
    last = None
    for group_id in request.body.groups_names:
        if not may_group(request, Action.DELETE, group_id):
            refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
            answer.results.append(DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=refused))
            continue
        fault, ticket = request.service.groups.delete_group(request.group_key(group_id))
        if fault is GroupFault.NONE:
            last = ticket
            request.service.broker.owners.forget(Kind.GROUP, request.namespace.name, group_id)
            request.service.forget_share_group(request.namespace, group_id)
        answer.results.append(
            DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code_of_fault(fault))
        )
    return when_durable(request, answer, last, _fail_delete)


def _fail_delete(answer: Any, code: ErrorCode) -> None:
    for one in answer.results:
        one.error_code = one.error_code or code


def consumer_group_describe(request: Request) -> Any:
    answer = ConsumerGroupDescribeResponse()
    for group_id in request.body.group_ids:
        group = request.service.groups.find(request.group_key(group_id))
        kind = ConsumerGroupDescribeResponse.DescribedGroup
        if not may_group(request, Action.DESCRIBE, group_id):
            answer.groups.append(kind(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
            continue
        if not isinstance(group, ConsumerGroup):
            answer.groups.append(
                kind(
                    group_id=group_id,
                    error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                    error_message=f"there is no consumer group {group_id}",
                )
            )
            continue
        answer.groups.append(
            kind(
                group_id=group_id,
                group_state=group.state,
                group_epoch=group.epoch,
                assignment_epoch=group.target_epoch,
                assignor_name=group.assignor,
                members=[_described_member(group, member) for member in group.members.values()],
                authorized_operations=GROUP_BITS if request.body.include_authorized_operations else NOT_ASKED,
            )
        )
    return answer


def _described_member(group: ConsumerGroup, member: Any) -> Any:
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern.text if member.pattern is not None else None,
        assignment=_assignment(group, member.assigned),
        target_assignment=_assignment(group, group.target.get(member.member_id, set())),
        member_type=MEMBER_TYPE_CONSUMER if member.seat is None else MEMBER_TYPE_CLASSIC,
    )


def _assignment(group: ConsumerGroup, partitions: set[tuple[bytes, int]]) -> Any:
    names = {topic_id: name for name, (topic_id, _) in group.topics.items()}
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(index)
    return ConsumerGroupDescribeResponse.Assignment(
        topic_partitions=[
            ConsumerGroupDescribeResponse.TopicPartitions(
                topic_id=topic_id, topic_name=names.get(topic_id, ""), partitions=indexes
            )
            for topic_id, indexes in by_topic.items()
        ]
    )


HANDLERS = {15: describe_groups, 16: list_groups, 42: delete_groups, 69: consumer_group_describe}

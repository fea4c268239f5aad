"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of members that meet a KIP-848 group, and its taking over a classic one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.broker.groups import classic_members
from mainstem.broker.groups.classic import ClassicGroup, Join, Joined
from mainstem.broker.groups.consumer import ConsumerGroup
from mainstem.broker.groups.fault import GroupFault
from mainstem.protocols.kafka.errors import code_of_fault
from mainstem.protocols.kafka.kafka_topics import GroupTopics
from mainstem.protocols.kafka.messages import SyncGroupResponse
from mainstem.protocols.kafka.subscription import read_assignment, read_subscription, write_assignment

if TYPE_CHECKING:
    from mainstem.protocols.kafka.adapter import Request


def upgraded(request: Request, key: str) -> ConsumerGroup | None:
    """The group of a KIP-848 member that comes where classic ones are; None if these are no consumers."""
    lookup, now_ms = GroupTopics(request.topics), request.service.monotonic_ms()

    def take_over(classic: ClassicGroup, group: ConsumerGroup) -> bool:
        return classic_members.upgrade(
            classic, group, read_subscription, lambda member: read_assignment(member.assignment), lookup, now_ms
        )

    return request.service.groups.upgrade(key, take_over)


def join(request: Request, group: ConsumerGroup, ask: Join) -> Joined:
    said = read_subscription(ask.protocols[0][1]) if ask.protocols else None
    if said is None or ask.protocol_type != classic_members.PROTOCOL_TYPE:
        return Joined(GroupFault.INCONSISTENT_GROUP_PROTOCOL, ask.member_id)
    service = request.service
    limits = service.groups.limits
    if not limits.session_ms_min <= ask.session_ms <= limits.session_ms_max:
        return Joined(GroupFault.INVALID_SESSION_TIMEOUT, ask.member_id)
    joined = classic_members.join(
        group, ask, said, GroupTopics(request.topics), service.groups.make_id, service.monotonic_ms()
    )
    service.groups.keep(group)
    return joined


def sync(request: Request, group: ConsumerGroup) -> Any:
    body = request.body
    fault, partitions = classic_members.sync(group, body.member_id, body.group_instance_id, body.generation_id)
    return SyncGroupResponse(
        error_code=code_of_fault(fault),
        protocol_type=body.protocol_type,
        protocol_name=body.protocol_name,
        assignment=write_assignment(partitions) if fault is GroupFault.NONE else b"",
    )


def heartbeat(request: Request, group: ConsumerGroup) -> GroupFault:
    body, now_ms = request.body, request.service.monotonic_ms()
    lookup = GroupTopics(request.topics)
    return classic_members.heartbeat(group, body.member_id, body.group_instance_id, body.generation_id, lookup, now_ms)


def leave(request: Request, group: ConsumerGroup, member_id: str, instance_id: str | None) -> GroupFault:
    return classic_members.leave(group, member_id, instance_id, GroupTopics(request.topics))

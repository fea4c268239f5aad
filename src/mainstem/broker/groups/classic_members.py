"""Members of the classic protocol in a KIP-848 group, as when a group's clients are upgraded one by one.

The broker assigns for them too. A member that is to move is told REBALANCE_IN_PROGRESS by its next heartbeat; it joins
again and says what it still owns, which is one step towards the target (`consumer.py`), and is told what it has when it
syncs. Its generation is its epoch. The broker goes on assigning until the group is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mainstem.broker.groups.classic import ClassicGroup, Join, Joined, Member, State, Synced
from mainstem.broker.groups.consumer import MEMBERS_MAX, Beat, ConsumerGroup, ConsumerMember, Seat, TopicLookup
from mainstem.broker.groups.fault import GroupFault

PROTOCOL_TYPE = "consumer"
Named = set[tuple[str, int]]  # partitions by topic name, as classic members know them


@dataclass(frozen=True, slots=True)
class Subscription:
    topics: set[str]
    owned: Named


def upgrade(
    classic: ClassicGroup,
    group: ConsumerGroup,
    read: Callable[[bytes], Subscription | None],
    assigned_to: Callable[[Member], Named],
    lookup: TopicLookup,
    now_ms: int,
) -> bool:
    """Take the members over with what they have; False if one of them says what cannot be read."""
    if classic.protocol_type != PROTOCOL_TYPE:
        return False
    read_members = [(member, read(member.protocols[0][1])) for member in classic.members.values()]
    if any(said is None for _, said in read_members):
        return False
    group.epoch = group.target_epoch = classic.generation
    for old, said in read_members:
        assert said is not None
        member = ConsumerMember(
            old.member_id,
            old.instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            rebalance_ms=old.rebalance_ms,
            topics=said.topics,
            epoch=classic.generation,
            deadline_ms=now_ms + old.session_ms,
            seat=Seat(old.session_ms),
        )
        if classic.state is State.STABLE:
            member.assigned = _ids(assigned_to(old), lookup)
            member.told = set(member.assigned)
        group.members[old.member_id] = member
        group.target[old.member_id] = set(member.assigned)
        if old.join_reply is not None:
            old.join_reply(Joined(GroupFault.REBALANCE_IN_PROGRESS, old.member_id))
        if old.sync_reply is not None:
            old.sync_reply(Synced(GroupFault.REBALANCE_IN_PROGRESS))
    return True


def join(
    group: ConsumerGroup, ask: Join, said: Subscription, lookup: TopicLookup, make_id: Callable[[], str], now_ms: int
) -> Joined:
    found = _seated(group, ask, make_id)
    if isinstance(found, Joined):
        return found
    member = found
    member.seat = Seat(ask.session_ms)
    member.deadline_ms = now_ms + ask.session_ms
    member.rebalance_ms = ask.rebalance_ms
    member.client_id, member.client_host = ask.client_id, ask.client_host
    if member.topics != said.topics:
        member.topics = said.topics
        group.epoch += 1
        group.changed = True
    owned = _ids(said.owned, lookup)
    if not owned:  # it gave up everything before it joined
        member.assigned, member.revoking = set(), set()
    member.revoke_until_ms = None
    group.refresh(lookup)
    group.move(member, Beat(member.member_id, member.epoch, owned=owned), now_ms)
    return Joined(
        member_id=member.member_id,
        generation=member.epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol=ask.protocols[0][0],
    )


def _seated(group: ConsumerGroup, ask: Join, make_id: Callable[[], str]) -> ConsumerMember | Joined:
    holder = group.static(ask.instance_id) if ask.instance_id is not None else None
    if holder is not None and ask.member_id and holder.member_id != ask.member_id:
        return Joined(GroupFault.FENCED_INSTANCE_ID, ask.member_id)
    if ask.member_id:
        known = group.members.get(ask.member_id)
        return known if known is not None else Joined(GroupFault.UNKNOWN_MEMBER_ID, ask.member_id)
    member_id = f"{ask.instance_id or ask.client_id or 'member'}-{make_id()}"
    if holder is not None:
        group.rename(holder, member_id)
        return holder
    if len(group.members) >= MEMBERS_MAX:
        return Joined(GroupFault.GROUP_MAX_SIZE_REACHED)
    made = group.members[member_id] = ConsumerMember(member_id, ask.instance_id)
    group.epoch += 1
    group.changed = True
    return made


def sync(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> tuple[GroupFault, Named]:
    """What the member has; it asked for it after it joined."""
    fault, member = _of(group, member_id, instance_id, generation)
    if member is None:
        return fault, set()
    member.told = set(member.assigned)
    names = {topic_id: name for name, (topic_id, _) in group.topics.items()}
    return GroupFault.NONE, {(names[topic_id], index) for topic_id, index in member.assigned if topic_id in names}


def heartbeat(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    generation: int,
    lookup: TopicLookup,
    now_ms: int,
) -> GroupFault:
    fault, member = _of(group, member_id, instance_id, generation)
    if member is None:
        return fault
    assert member.seat is not None
    member.deadline_ms = now_ms + member.seat.session_ms
    group.refresh(lookup)
    if not group.is_to_move(member) and member.told == member.assigned:
        return GroupFault.NONE
    if member.revoke_until_ms is None:  # who does not come in time loses its place
        member.revoke_until_ms = now_ms + member.rebalance_ms
    return GroupFault.REBALANCE_IN_PROGRESS


def leave(group: ConsumerGroup, member_id: str, instance_id: str | None, lookup: TopicLookup) -> GroupFault:
    if instance_id is not None and not member_id:  # an administrator knows the instance only
        member = group.static(instance_id)
        fault = GroupFault.NONE if member is not None else GroupFault.UNKNOWN_MEMBER_ID
    else:
        fault, member = _identify(group, member_id, instance_id)
    if member is None:
        return fault
    group.remove(member)
    group.refresh(lookup)
    return GroupFault.NONE


def _identify(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[GroupFault, ConsumerMember | None]:
    """Who lost its instance id to another is told so: it must not come back and take it again."""
    if instance_id is not None:
        holder = group.static(instance_id)
        if holder is not None and holder.member_id != member_id:
            return GroupFault.FENCED_INSTANCE_ID, None
    member = group.members.get(member_id)
    return (GroupFault.UNKNOWN_MEMBER_ID if member is None else GroupFault.NONE), member


def _of(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[GroupFault, ConsumerMember | None]:
    fault, member = _identify(group, member_id, instance_id)
    if member is None or member.seat is None:
        return fault if member is None else GroupFault.UNKNOWN_MEMBER_ID, None
    return (GroupFault.NONE, member) if generation == member.epoch else (GroupFault.ILLEGAL_GENERATION, None)


def _ids(partitions: Named, lookup: TopicLookup) -> set[tuple[bytes, int]]:
    found: set[tuple[bytes, int]] = set()
    for name, index in partitions:
        topic = lookup.find(name)
        if topic is not None and 0 <= index < topic[1]:
            found.add((topic[0], index))
    return found

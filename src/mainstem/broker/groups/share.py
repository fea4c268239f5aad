"""The share group of KIP-932, as far as membership goes: members compete, so partitions may be given to many at once.

Which records they take is the queue's business (`cursor.queue`). Nothing has to be given up first: a member moves to
the group's target with its next heartbeat. Pure; time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mainstem.broker.groups.assign import TopicPartition, assign_shared
from mainstem.broker.groups.classic import GroupLimits
from mainstem.broker.groups.consumer import HEARTBEAT_MS, JOIN_EPOCH, SESSION_MS, Beat, BeatAnswer, TopicLookup
from mainstem.broker.groups.fault import GroupFault

MEMBERS_MAX = 1_000


@dataclass(slots=True)
class ShareMember:
    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: set[str] = field(default_factory=set)
    epoch: int = 0
    assigned: set[TopicPartition] = field(default_factory=set)
    deadline_ms: int = 0


class ShareGroup:
    kind = "share"

    def __init__(self, group_id: str, make_id: Callable[[], str], limits: GroupLimits | None = None) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.members: dict[str, ShareMember] = {}
        self.target: dict[str, set[TopicPartition]] = {}
        self.topics: dict[str, tuple[bytes, int]] = {}
        self.empty_since_ms = 0  # wall time; kept by whoever keeps the group
        self.changed = False
        self._target_epoch = 0
        self._make_id = make_id

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"

    @property
    def target_epoch(self) -> int:
        return self._target_epoch

    def heartbeat(self, beat: Beat, lookup: TopicLookup, now_ms: int) -> BeatAnswer:
        if beat.epoch < 0:
            member = self.members.get(beat.member_id)
            if member is None:
                return BeatAnswer(GroupFault.UNKNOWN_MEMBER_ID, f"{beat.member_id} is not a member")
            self._remove(member, now_ms)
            return BeatAnswer(member_id=beat.member_id, epoch=beat.epoch, heartbeat_ms=0)
        found = self._find(beat)
        if isinstance(found, BeatAnswer):
            return found
        member = found
        if beat.topics is not None and set(beat.topics) != member.topics:
            member.topics = set(beat.topics)
            self.epoch += 1
        if beat.client_id:
            member.client_id, member.client_host, member.rack_id = beat.client_id, beat.client_host, beat.rack_id
        member.deadline_ms = now_ms + SESSION_MS
        self.refresh(lookup)
        target = self.target.get(member.member_id, set())
        news = beat.epoch == JOIN_EPOCH or member.assigned != target or beat.topics is not None
        member.epoch, member.assigned = self._target_epoch, set(target)
        return BeatAnswer(
            member_id=member.member_id,
            epoch=member.epoch,
            heartbeat_ms=HEARTBEAT_MS,
            assignment=set(target) if news else None,
        )

    def _find(self, beat: Beat) -> ShareMember | BeatAnswer:
        member = self.members.get(beat.member_id)
        if beat.epoch != JOIN_EPOCH:
            if member is None:
                return BeatAnswer(GroupFault.UNKNOWN_MEMBER_ID, f"{beat.member_id} is not a member")
            if beat.epoch > member.epoch:
                return BeatAnswer(GroupFault.FENCED_MEMBER_EPOCH, f"epoch {beat.epoch}, expected {member.epoch}")
            return member
        if member is None:
            if len(self.members) >= MEMBERS_MAX:
                return BeatAnswer(GroupFault.GROUP_MAX_SIZE_REACHED, f"{MEMBERS_MAX} members")
            member_id = beat.member_id or self._make_id()
            member = self.members[member_id] = ShareMember(member_id, client_host=beat.client_host)
            self.epoch += 1
            self.changed = True
        return member

    def refresh(self, lookup: TopicLookup) -> None:
        seen: dict[str, tuple[bytes, int]] = {}
        for member in self.members.values():
            for name in member.topics:
                if name not in seen and (found := lookup.find(name)) is not None:
                    seen[name] = found
        if seen != self.topics:
            self.topics = seen
            self.epoch += 1
        if self.epoch == self._target_epoch:
            return
        wants = {m.member_id: {seen[name][0] for name in m.topics if name in seen} for m in self.members.values()}
        self.target = assign_shared(wants, dict(seen.values()))
        self._target_epoch = self.epoch

    def _remove(self, member: ShareMember, now_ms: int) -> None:
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        self.epoch += 1

    def check_commit(self, member_id: str, instance_id: str | None, epoch: int, now_ms: int) -> GroupFault:
        return GroupFault.INCONSISTENT_GROUP_PROTOCOL

    def tick(self, now_ms: int) -> None:
        for member in [member for member in self.members.values() if member.deadline_ms <= now_ms]:
            self._remove(member, now_ms)

    def next_ms(self) -> int | None:
        return min((member.deadline_ms for member in self.members.values()), default=None)

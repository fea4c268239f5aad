"""The consumer group of KIP-848: the broker assigns, members follow at their own pace. Pure; time is an argument.

The group has a target assignment, computed when a member or a subscribed topic comes, goes or changes. A member moves
towards it in steps, one per heartbeat: it is first told to give up what it should no longer have; once it says that it
has (or owns none of it), it takes the target's epoch and is given what no other member still holds. So no partition is
ever with two members, and nobody stops for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from mainstem.broker.groups.assign import ASSIGNORS, TopicPartition, assign
from mainstem.broker.groups.classic import GroupLimits
from mainstem.broker.groups.fault import GroupFault
from mainstem.broker.rights.people import Principal
from mainstem.model.errors import InvalidArgument
from mainstem.model.pattern import Pattern

SESSION_MS = 45_000
HEARTBEAT_MS = 3_000
HEARTBEAT_MOVING_MS = 500  # while the member has not reached the target
MEMBERS_MAX = 10_000
NOBODY = Principal("")
JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2


class TopicLookup(Protocol):
    def find(self, name: str) -> tuple[bytes, int] | None:
        """Topic id and number of partitions."""

    def names(self, reader: Principal) -> Iterable[str]:
        """All topics a pattern of this reader's may match: those that it may see."""


@dataclass(slots=True)
class Beat:
    """A heartbeat. None: as last said."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_ms: int = -1
    topics: list[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: set[TopicPartition] | None = None
    client_id: str = ""
    client_host: str = ""
    reader: Principal = NOBODY


@dataclass(slots=True)
class BeatAnswer:
    fault: GroupFault = GroupFault.NONE
    message: str | None = None
    member_id: str = ""
    epoch: int = 0
    heartbeat_ms: int = HEARTBEAT_MS
    assignment: set[TopicPartition] | None = None  # None: as last told


@dataclass(frozen=True, slots=True)
class Seat:
    """What the group keeps of a member that speaks the classic protocol (`classic_members.py`)."""

    session_ms: int


@dataclass(slots=True)
class ConsumerMember:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_ms: int = 300_000
    topics: set[str] = field(default_factory=set)
    pattern: Pattern | None = None
    reader: Principal = NOBODY  # whose pattern it is
    assignor: str = ""
    epoch: int = 0
    previous_epoch: int = -1
    assigned: set[TopicPartition] = field(default_factory=set)
    revoking: set[TopicPartition] = field(default_factory=set)
    deadline_ms: int = 0
    revoke_until_ms: int | None = None
    told: set[TopicPartition] | None = None
    away: bool = False  # a static member that left for a while
    seat: Seat | None = None

    def holds(self) -> set[TopicPartition]:
        return self.assigned | self.revoking


class ConsumerGroup:
    kind = "consumer"

    def __init__(self, group_id: str, make_id: Callable[[], str], limits: GroupLimits | None = None) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.target_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.target: dict[str, set[TopicPartition]] = {}
        self.topics: dict[str, tuple[bytes, int]] = {}  # subscribed ones, as last seen
        self.empty_since_ms = 0  # wall time; kept by whoever keeps the group
        self.changed = False
        self._make_id = make_id
        self._target_wants: object = None

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        steady = all(m.epoch == self.target_epoch and not m.revoking for m in self.members.values())
        return "Stable" if steady else "Reconciling"

    @property
    def assignor(self) -> str:
        votes = [member.assignor for member in self.members.values() if member.assignor]
        return max(sorted(set(votes)), key=votes.count, default=ASSIGNORS[0])

    # -- one heartbeat ---------------------------------------------------------------------------------------------

    def heartbeat(self, beat: Beat, lookup: TopicLookup, now_ms: int) -> BeatAnswer:
        if beat.assignor and beat.assignor not in ASSIGNORS:
            known = ", ".join(ASSIGNORS)
            return BeatAnswer(GroupFault.UNSUPPORTED_ASSIGNOR, f"assignor {beat.assignor}; known are {known}")
        try:
            pattern = Pattern(beat.pattern) if beat.pattern else None
        except InvalidArgument as fault:
            return BeatAnswer(GroupFault.INVALID_REGULAR_EXPRESSION, fault.message)
        if beat.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(beat, lookup, now_ms)
        joins = beat.epoch == JOIN_EPOCH
        found = self._join(beat) if joins else self._known(beat)
        if isinstance(found, BeatAnswer):
            return found
        member = found
        if joins or beat.topics is not None or beat.pattern is not None:
            self._describe(member, beat, pattern)
        member.deadline_ms = now_ms + SESSION_MS
        self.refresh(lookup)
        self.move(member, beat, now_ms)
        return self._answer(member, full=joins or beat.topics is not None)

    def _join(self, beat: Beat) -> ConsumerMember | BeatAnswer:
        member_id = beat.member_id or self._make_id()
        if beat.instance_id is not None:
            other = self.static(beat.instance_id)
            if other is not None and other.member_id != member_id:
                if not other.away:
                    return BeatAnswer(GroupFault.UNRELEASED_INSTANCE_ID, f"instance {beat.instance_id} is a member")
                self.rename(other, member_id)
        member = self.members.get(member_id)
        if member is None:
            if len(self.members) >= MEMBERS_MAX:
                return BeatAnswer(GroupFault.GROUP_MAX_SIZE_REACHED, f"{MEMBERS_MAX} members")
            member = self.members[member_id] = ConsumerMember(member_id, beat.instance_id)
            self.epoch += 1
        member.away = False
        member.told = None
        if not beat.owned:  # it comes with nothing: whatever it held is free
            member.assigned, member.revoking, member.revoke_until_ms = set(), set(), None
        self.changed = True
        return member

    def _known(self, beat: Beat) -> ConsumerMember | BeatAnswer:
        member = self._identified(beat)
        if isinstance(member, BeatAnswer):
            return member
        if member.away:
            return BeatAnswer(GroupFault.FENCED_MEMBER_EPOCH, f"{beat.member_id} left for a while; it must join again")
        lost_answer = beat.epoch == member.previous_epoch and (beat.owned is None or beat.owned <= member.holds())
        if beat.epoch != member.epoch and not lost_answer:
            return BeatAnswer(GroupFault.FENCED_MEMBER_EPOCH, f"epoch {beat.epoch}, expected {member.epoch}")
        if lost_answer and beat.epoch != member.epoch:
            member.told = None
        return member

    def _identified(self, beat: Beat) -> ConsumerMember | BeatAnswer:
        holder = self.members.get(beat.member_id)
        if beat.instance_id is not None:
            holder = self.static(beat.instance_id)
            if holder is not None and holder.member_id != beat.member_id:
                return BeatAnswer(GroupFault.FENCED_INSTANCE_ID, f"instance {beat.instance_id} was taken over")
        if holder is None:
            return BeatAnswer(GroupFault.UNKNOWN_MEMBER_ID, f"{beat.member_id} is not a member of {self.group_id}")
        return holder

    def _describe(self, member: ConsumerMember, beat: Beat, pattern: Pattern | None) -> None:
        before = (member.topics, _text_of(member.pattern), member.assignor)
        member.client_id, member.client_host = beat.client_id, beat.client_host
        if beat.rebalance_ms > 0:
            member.rebalance_ms = beat.rebalance_ms
        member.rack_id = beat.rack_id if beat.rack_id is not None else member.rack_id
        if beat.topics is not None:
            member.topics = set(beat.topics)
        if beat.pattern is not None and beat.pattern != _text_of(member.pattern):  # "" means: no pattern
            member.pattern = pattern
        member.reader = beat.reader
        if beat.assignor is not None:
            member.assignor = beat.assignor
        if before != (member.topics, _text_of(member.pattern), member.assignor):
            self.epoch += 1
            self.changed = True

    def _leave(self, beat: Beat, lookup: TopicLookup, now_ms: int) -> BeatAnswer:
        member = self._identified(beat)
        if isinstance(member, BeatAnswer):
            return member
        if beat.epoch == STATIC_LEAVE_EPOCH and member.instance_id is not None:
            member.away = True
            member.assigned |= member.revoking
            member.revoking, member.revoke_until_ms = set(), None
        else:
            self.remove(member)
            self.refresh(lookup)
        return BeatAnswer(member_id=beat.member_id, epoch=beat.epoch, heartbeat_ms=0)

    # -- the target ------------------------------------------------------------------------------------------------

    def refresh(self, lookup: TopicLookup) -> None:
        """Look at the subscribed topics again; a change of them or of the members makes a new target."""
        seen: dict[str, tuple[bytes, int]] = {}
        matched: dict[tuple[str, Principal], set[str]] = {}
        for member in self.members.values():
            for name in member.topics | _matching(member, lookup, matched):
                if name not in seen and (found := lookup.find(name)) is not None:
                    seen[name] = found
        if seen != self.topics:
            self.topics = seen
            self.epoch += 1
            self.changed = True
        if self.epoch == self.target_epoch:
            return
        partitions = dict(seen.values())
        wants = {
            member.member_id: {
                seen[name][0] for name in member.topics | _matching(member, lookup, matched) if name in seen
            }
            for member in self.members.values()
        }
        self.target = assign(self.assignor, wants, partitions, self.target)
        self.target_epoch = self.epoch

    def move(self, member: ConsumerMember, beat: Beat, now_ms: int) -> None:
        """One step of this member towards the target."""
        if beat.owned is not None and not beat.owned & member.revoking:
            member.revoking, member.revoke_until_ms = set(), None
        target = self.target.get(member.member_id, set())
        excess = member.assigned - target
        if excess:
            member.assigned -= excess
            member.revoking |= excess
            member.revoke_until_ms = now_ms + member.rebalance_ms
        if member.revoking:
            return
        if member.epoch != self.target_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.target_epoch
        gained = self._free_for(member)
        if gained != member.assigned:
            member.assigned = gained
            self.changed = True

    def _free_for(self, member: ConsumerMember) -> set[TopicPartition]:
        """What the target gives it and no other member still holds."""
        taken = set().union(*(other.holds() for other in self.members.values() if other is not member))
        return self.target.get(member.member_id, set()) - taken

    def is_to_move(self, member: ConsumerMember) -> bool:
        return bool(member.revoking) or member.epoch != self.target_epoch or member.assigned != self._free_for(member)

    def _answer(self, member: ConsumerMember, *, full: bool) -> BeatAnswer:
        moving = bool(member.revoking) or member.assigned != self.target.get(member.member_id, set())
        news = full or member.told is None or member.told != member.assigned
        if news:
            member.told = set(member.assigned)
        return BeatAnswer(
            member_id=member.member_id,
            epoch=member.epoch,
            heartbeat_ms=HEARTBEAT_MOVING_MS if moving or self.state != "Stable" else HEARTBEAT_MS,
            assignment=set(member.assigned) if news else None,
        )

    # -- members ---------------------------------------------------------------------------------------------------

    def static(self, instance_id: str) -> ConsumerMember | None:
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def rename(self, member: ConsumerMember, member_id: str) -> None:
        del self.members[member.member_id]
        self.target[member_id] = self.target.pop(member.member_id, set())
        member.member_id = member_id
        member.told = None
        self.members[member_id] = member

    def remove(self, member: ConsumerMember) -> None:
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        self.epoch += 1
        self.changed = True

    def check_commit(self, member_id: str, instance_id: str | None, epoch: int, now_ms: int) -> GroupFault:
        if epoch < 0 and not self.members:
            return GroupFault.NONE
        member = self.members.get(member_id)
        if member is None:
            return GroupFault.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return GroupFault.NONE
        return GroupFault.STALE_MEMBER_EPOCH if member.seat is None else GroupFault.ILLEGAL_GENERATION

    def tick(self, now_ms: int) -> None:
        for member in list(self.members.values()):
            late = member.revoke_until_ms is not None and member.revoke_until_ms <= now_ms
            if late or member.deadline_ms <= now_ms:
                self.remove(member)

    def next_ms(self) -> int | None:
        times = [member.deadline_ms for member in self.members.values()]
        times += [m.revoke_until_ms for m in self.members.values() if m.revoke_until_ms is not None]
        return min(times, default=None)


def _text_of(pattern: Pattern | None) -> str:
    return pattern.text if pattern is not None else ""


def _matching(member: ConsumerMember, lookup: TopicLookup, known: dict[tuple[str, Principal], set[str]]) -> set[str]:
    """What the member's pattern chooses; members of one user that have the same share the answer."""
    if member.pattern is None:
        return set()
    key = (member.pattern.text, member.reader)
    if key not in known:
        known[key] = member.pattern.chosen(lookup.names(member.reader))
    return known[key]

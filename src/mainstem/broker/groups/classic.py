"""The classic consumer group: members join, one of them (the leader) assigns, all sync. Pure; time is an argument.

    empty ──join──> preparing ──all joined, or time is up──> completing ──leader's sync──> stable
      ^                 ^                                        │                           │
      └── last one left ┴──────────── a join, a leave, a lost member, another metadata ──────┘

A join and a sync are answered later, through the `reply` that came with them; each is answered exactly once. Dynamic
members leave when their session ends; a static member (with an instance id) may come back under a new member id and
take its old place without a rebalance. Members that do not join a rebalance in time lose their place in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from mainstem.broker.groups.fault import GroupFault

MEMBERS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class GroupLimits:
    session_ms_min: int = 1_000
    session_ms_max: int = 1_800_000
    first_join_ms: int = 500  # an empty group waits this long, so that members that start together meet
    offsets_retention_ms: int = 7 * 24 * 3_600_000


class State(StrEnum):
    """The words Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class Joined:
    """The answer to a join. Only the leader is told the members: (member id, instance id, metadata)."""

    fault: GroupFault = GroupFault.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: list[tuple[str, str | None, bytes]] = field(default_factory=list)
    skip_assignment: bool = False


@dataclass(slots=True)
class Synced:
    fault: GroupFault = GroupFault.NONE
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(slots=True)
class Join:
    """What a member asks for."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: list[tuple[str, bytes]]  # by preference: (name, metadata)
    must_know_id: bool = False  # a new member is first told its id and asked to join again
    static_may_skip: bool = False  # a returning static leader need not assign again


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: list[tuple[str, bytes]]
    deadline_ms: int = 0
    assignment: bytes = b""
    join_reply: Callable[[Joined], None] | None = None
    sync_reply: Callable[[Synced], None] | None = None

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


class ClassicGroup:
    kind = "classic"

    def __init__(self, group_id: str, make_id: Callable[[], str], limits: GroupLimits | None = None) -> None:
        self.group_id = group_id
        self.limits = limits or GroupLimits()
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.statics: dict[str, str] = {}  # instance id → member id
        self.pending: dict[str, int] = {}  # ids told to members that have yet to join: id → until when
        self.empty_since_ms = 0  # wall time; kept by whoever keeps the group
        self.changed = False  # what is worth keeping changed; whoever persists it resets this
        self._make_id = make_id
        self._join_until_ms = 0
        self._join_from_ms = 0
        self._sync_until_ms = 0

    # -- joining ---------------------------------------------------------------------------------------------------

    def join(self, ask: Join, now_ms: int, reply: Callable[[Joined], None]) -> None:
        fault = self._refusal(ask)
        if fault is not GroupFault.NONE:
            reply(Joined(fault, ask.member_id))
        elif not ask.member_id:
            self._join_new(ask, now_ms, reply)
        else:
            self._join_known(ask, now_ms, reply)

    def _refusal(self, ask: Join) -> GroupFault:
        if not self.limits.session_ms_min <= ask.session_ms <= self.limits.session_ms_max:
            return GroupFault.INVALID_SESSION_TIMEOUT
        if not ask.protocols or not ask.protocol_type:
            return GroupFault.INCONSISTENT_GROUP_PROTOCOL
        others = [member for member in self.members.values() if member.member_id != ask.member_id]
        if others:
            if self.protocol_type != ask.protocol_type:
                return GroupFault.INCONSISTENT_GROUP_PROTOCOL
            if not self._common(others) & {name for name, _ in ask.protocols}:
                return GroupFault.INCONSISTENT_GROUP_PROTOCOL
        if ask.member_id not in self.members and len(self.members) + len(self.pending) >= MEMBERS_MAX:
            return GroupFault.GROUP_MAX_SIZE_REACHED
        return GroupFault.NONE

    def _join_new(self, ask: Join, now_ms: int, reply: Callable[[Joined], None]) -> None:
        member_id = f"{ask.instance_id or ask.client_id or 'member'}-{self._make_id()}"
        if ask.instance_id is not None:
            known = self.statics.get(ask.instance_id)
            if known is not None:
                self._replace_static(known, member_id, ask, now_ms, reply)
            else:
                self._add(member_id, ask, now_ms, reply)
        elif ask.must_know_id:
            self.pending[member_id] = now_ms + ask.session_ms
            reply(Joined(GroupFault.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(member_id, ask, now_ms, reply)

    def _join_known(self, ask: Join, now_ms: int, reply: Callable[[Joined], None]) -> None:
        if ask.member_id in self.pending:
            del self.pending[ask.member_id]
            self._add(ask.member_id, ask, now_ms, reply)
            return
        fault = self._identify(ask.member_id, ask.instance_id)
        if fault is not GroupFault.NONE:
            reply(Joined(fault, ask.member_id))
            return
        member = self.members[ask.member_id]
        same = member.protocols == ask.protocols
        leads = self.leader == member.member_id
        if same and (self.state is State.COMPLETING or (self.state is State.STABLE and not leads)):
            self._touch(member, now_ms)
            reply(self._joined(member))  # it missed the answer; nothing changes for the others
            return
        self._update(member, ask, now_ms, reply)

    def _add(self, member_id: str, ask: Join, now_ms: int, reply: Callable[[Joined], None]) -> None:
        if not self.members:
            self.protocol_type = ask.protocol_type
        member = Member(
            member_id, ask.instance_id, ask.client_id, ask.client_host, ask.session_ms, ask.rebalance_ms, ask.protocols
        )
        self.members[member_id] = member
        if ask.instance_id is not None:
            self.statics[ask.instance_id] = member_id
        if self.leader is None:
            self.leader = member_id
        self._update(member, ask, now_ms, reply)

    def _update(self, member: Member, ask: Join, now_ms: int, reply: Callable[[Joined], None]) -> None:
        member.protocols, member.session_ms, member.rebalance_ms = ask.protocols, ask.session_ms, ask.rebalance_ms
        member.client_id, member.client_host = ask.client_id, ask.client_host
        if member.join_reply is not None:  # it asks again: the older request is not answered with news
            member.join_reply(Joined(GroupFault.REBALANCE_IN_PROGRESS, member.member_id))
        member.join_reply = reply
        self._touch(member, now_ms)
        self._prepare(now_ms)

    def _replace_static(
        self, old_id: str, new_id: str, ask: Join, now_ms: int, reply: Callable[[Joined], None]
    ) -> None:
        """The same instance, started again: it takes the place, and whoever still uses the old id is fenced."""
        member = self.members.pop(old_id)
        if member.join_reply is not None:
            member.join_reply(Joined(GroupFault.FENCED_INSTANCE_ID, old_id))
        if member.sync_reply is not None:
            member.sync_reply(Synced(GroupFault.FENCED_INSTANCE_ID))
        member.join_reply = member.sync_reply = None
        was_leader = self.leader == old_id
        unchanged = member.metadata(self.protocol) == dict(ask.protocols).get(self.protocol or "", b"")
        member.member_id = new_id
        self.members[new_id] = member
        self.statics[ask.instance_id or ""] = new_id
        if was_leader:
            self.leader = new_id
        if self.state is State.STABLE and unchanged and self._would_choose(member, ask) == self.protocol:
            member.protocols = ask.protocols
            self._touch(member, now_ms)
            self.changed = True
            answer = self._joined(member)
            if was_leader and ask.static_may_skip:
                answer.skip_assignment = True
            elif was_leader:  # an old client would assign as leader; it must not, nothing changed
                answer.leader, answer.members = old_id, []
            reply(answer)
            return
        self._update(member, ask, now_ms, reply)

    def _would_choose(self, member: Member, ask: Join) -> str | None:
        kept, member.protocols = member.protocols, ask.protocols
        chosen = self._choose_protocol()
        member.protocols = kept
        return chosen

    # -- rebalancing -----------------------------------------------------------------------------------------------

    def _prepare(self, now_ms: int) -> None:
        if self.state is State.PREPARING:
            self._complete_if_all_joined(now_ms)
            return
        if self.state is State.COMPLETING:
            self._answer_syncs(GroupFault.REBALANCE_IN_PROGRESS)
        first = self.state is State.EMPTY
        self.state = State.PREPARING
        self._join_from_ms = now_ms + self.limits.first_join_ms if first else now_ms
        self._join_until_ms = now_ms + max((m.rebalance_ms for m in self.members.values()), default=0)
        self._complete_if_all_joined(now_ms)

    def _complete_if_all_joined(self, now_ms: int) -> None:
        waiting = self.pending or any(member.join_reply is None for member in self.members.values())
        if now_ms >= self._join_until_ms or (not waiting and now_ms >= self._join_from_ms):
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        for member in [m for m in self.members.values() if m.join_reply is None and m.instance_id is None]:
            self._forget(member)
        joined = [member for member in self.members.values() if member.join_reply is not None]
        if self.members and not joined:  # only static members, none of them here yet: wait for another round
            self._join_until_ms = now_ms + max(member.rebalance_ms for member in self.members.values())
            return
        self.generation += 1
        self.changed = True
        if not self.members:
            self._become_empty(now_ms)
            return
        if self.leader not in self.members or self.members[self.leader].join_reply is None:
            self.leader = joined[0].member_id
        self.protocol = self._choose_protocol()
        self.state = State.COMPLETING
        self._sync_until_ms = now_ms + max(member.rebalance_ms for member in joined)
        for member in joined:
            reply, member.join_reply = member.join_reply, None
            self._touch(member, now_ms)
            assert reply is not None
            reply(self._joined(member))

    def _become_empty(self, now_ms: int) -> None:
        self.state = State.EMPTY
        self.protocol = self.leader = None

    def _choose_protocol(self) -> str | None:
        """Each member votes for the first of its protocols that all know; the most votes win."""
        common = self._common(self.members.values())
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next((name for name, _ in member.protocols if name in common), None)
            if choice is not None:
                votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name], default=None)

    @staticmethod
    def _common(members: Iterable[Member]) -> set[str]:
        sets = [{name for name, _ in member.protocols} for member in members]
        return set.intersection(*sets) if sets else set()

    def _joined(self, member: Member) -> Joined:
        leads = member.member_id == self.leader
        members = [(m.member_id, m.instance_id, m.metadata(self.protocol)) for m in self.members.values()]
        return Joined(
            GroupFault.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            members if leads else [],
        )

    # -- syncing ---------------------------------------------------------------------------------------------------

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: dict[str, bytes],
        now_ms: int,
        reply: Callable[[Synced], None],
    ) -> None:
        fault = self._check(member_id, instance_id, generation)
        if fault is GroupFault.NONE and (
            (protocol_type is not None and protocol_type != self.protocol_type)
            or (protocol is not None and protocol != self.protocol)
        ):
            fault = GroupFault.INCONSISTENT_GROUP_PROTOCOL
        if fault is GroupFault.NONE and self.state is State.PREPARING:
            fault = GroupFault.REBALANCE_IN_PROGRESS
        if fault is not GroupFault.NONE:
            reply(Synced(fault))
            return
        member = self.members[member_id]
        self._touch(member, now_ms)
        if self.state is State.STABLE:
            reply(self._synced(member))
            return
        if member.sync_reply is not None:
            member.sync_reply(Synced(GroupFault.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if member_id == self.leader:
            for other in self.members.values():
                other.assignment = assignments.get(other.member_id, b"")
            self.state = State.STABLE
            self.changed = True
            self._answer_syncs(GroupFault.NONE)

    def _answer_syncs(self, fault: GroupFault) -> None:
        for member in self.members.values():
            reply, member.sync_reply = member.sync_reply, None
            if fault is not GroupFault.NONE:
                member.assignment = b""
            if reply is not None:
                reply(self._synced(member) if fault is GroupFault.NONE else Synced(fault))

    def _synced(self, member: Member) -> Synced:
        return Synced(GroupFault.NONE, member.assignment, self.protocol_type, self.protocol)

    # -- staying and leaving ---------------------------------------------------------------------------------------

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> GroupFault:
        fault = self._check(member_id, instance_id, generation)
        if fault is not GroupFault.NONE:
            return fault
        self._touch(self.members[member_id], now_ms)
        return GroupFault.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else GroupFault.NONE

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> GroupFault:
        """By member id, or by instance id alone (an administrator removes a static member)."""
        if instance_id is not None and not member_id:
            member_id = self.statics.get(instance_id, "")
        if self.pending.pop(member_id, None) is not None:
            if self.state is State.PREPARING:
                self._complete_if_all_joined(now_ms)
            return GroupFault.NONE
        fault = self._identify(member_id, instance_id)
        if fault is GroupFault.NONE:
            self._remove(self.members[member_id], now_ms)
        return fault

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> GroupFault:
        """Whether this member may commit offsets now. Without members anyone may who claims no generation."""
        if generation < 0 and not self.members:
            return GroupFault.NONE
        fault = self._check(member_id, instance_id, generation)
        if fault is not GroupFault.NONE:
            return fault
        self._touch(self.members[member_id], now_ms)
        return GroupFault.REBALANCE_IN_PROGRESS if self.state is State.COMPLETING else GroupFault.NONE

    def _identify(self, member_id: str, instance_id: str | None) -> GroupFault:
        if instance_id is not None:
            known = self.statics.get(instance_id)
            if known is None:
                return GroupFault.UNKNOWN_MEMBER_ID
            if known != member_id:
                return GroupFault.FENCED_INSTANCE_ID
        return GroupFault.NONE if member_id in self.members else GroupFault.UNKNOWN_MEMBER_ID

    def _check(self, member_id: str, instance_id: str | None, generation: int) -> GroupFault:
        fault = self._identify(member_id, instance_id)
        if fault is GroupFault.NONE and generation != self.generation:
            return GroupFault.ILLEGAL_GENERATION
        return fault

    def _touch(self, member: Member, now_ms: int) -> None:
        member.deadline_ms = now_ms + member.session_ms

    def _remove(self, member: Member, now_ms: int) -> None:
        self._forget(member)
        if self.state is State.STABLE or self.state is State.COMPLETING:
            self._prepare(now_ms)
        elif self.state is State.PREPARING:
            self._complete_if_all_joined(now_ms)

    def _forget(self, member: Member) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None and self.statics.get(member.instance_id) == member.member_id:
            del self.statics[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)
        if member.join_reply is not None:
            member.join_reply(Joined(GroupFault.UNKNOWN_MEMBER_ID, member.member_id))
        if member.sync_reply is not None:
            member.sync_reply(Synced(GroupFault.UNKNOWN_MEMBER_ID))

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        for member_id in [member_id for member_id, until in self.pending.items() if until <= now_ms]:
            del self.pending[member_id]
        for member in list(self.members.values()):
            waits = member.join_reply is not None or member.sync_reply is not None
            if waits:  # we keep it waiting; that is not its silence
                self._touch(member, now_ms)
            elif member.deadline_ms <= now_ms and member.member_id in self.members:
                self._remove(member, now_ms)
        if self.state is State.PREPARING:
            self._complete_if_all_joined(now_ms)
        elif self.state is State.COMPLETING and self._sync_until_ms <= now_ms:
            late = [m for m in self.members.values() if m.sync_reply is None and m.instance_id is None]
            for member in late:
                self._forget(member)
            self._sync_until_ms = now_ms + max((m.rebalance_ms for m in self.members.values()), default=0)
            self._prepare(now_ms)

    def next_ms(self) -> int | None:
        """When `tick` has something to do at the latest."""
        times = [*self.pending.values(), *(member.deadline_ms for member in self.members.values())]
        if self.state is State.PREPARING:
            all_here = not self.pending and all(member.join_reply is not None for member in self.members.values())
            times.append(self._join_from_ms if all_here else self._join_until_ms)
        elif self.state is State.COMPLETING:
            times.append(self._sync_until_ms)
        return min(times, default=None)

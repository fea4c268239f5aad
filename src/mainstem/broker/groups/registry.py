"""All consumer and share groups, and the offsets they committed. Pure but for the journal; time is an argument.

Journal entries (kinds and keys; parts are joined by 0x00, which no group or topic name contains):

    kafka-group            group                              JSON: what a restart needs to go on without a rebalance
    kafka-offset           group 00 topic 00 partition        i64 offset, i32 leader epoch, i64 commit ms, metadata
    kafka-pending-offset   producer id 00 group 00 topic 00 partition   the same, until its transaction ends

A group is `<namespace> 01 <id>` where it is not of the default namespace: ids of tenants never meet.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from mainstem.broker.groups.classic import ClassicGroup, GroupLimits, Member, State
from mainstem.broker.groups.consumer import ConsumerGroup, TopicLookup
from mainstem.broker.groups.fault import GroupFault
from mainstem.broker.groups.share import ShareGroup
from mainstem.broker.state.journal import Entries, StateKeeper
from mainstem.log.gather import Ticket

GROUPS_MAX = 100_000
GROUP_ID_BYTES_MAX = 1_000
METADATA_BYTES_MAX = 4_096
MARKS = {"\0", "\1"}  # between the parts of a key
_COMMIT = struct.Struct(">qiq")

Group = ClassicGroup | ConsumerGroup | ShareGroup
TopicPartition = tuple[str, int]
G = TypeVar("G", ClassicGroup, ConsumerGroup, ShareGroup)


class Commit(NamedTuple):
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = 0

    def pack(self) -> bytes:
        return _COMMIT.pack(self.offset, self.leader_epoch, self.commit_ms) + self.metadata.encode()

    @staticmethod
    def unpack(data: bytes) -> Commit:
        offset, leader_epoch, commit_ms = _COMMIT.unpack_from(data)
        return Commit(offset, leader_epoch, data[_COMMIT.size :].decode(), commit_ms)


class Groups:
    def __init__(self, journal: StateKeeper, make_id: Callable[[], str], limits: GroupLimits | None = None) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, dict[TopicPartition, Commit]] = {}
        self.pending: dict[int, dict[tuple[str, TopicPartition], Commit]] = {}  # producer id → its open commits
        self.limits = limits or GroupLimits()
        self._make_id = make_id
        self._journal = journal
        self.subscribed: Callable[[Group], set[str] | None] = lambda group: None  # what members say is Kafka's to read
        journal.register("kafka-group", self._apply_group, self._dump_groups)
        journal.register("kafka-offset", self._apply_offset, self._dump_offsets)
        journal.register("kafka-pending-offset", self._apply_pending, self._dump_pending, entries=Entries.COPIED)

    # -- finding groups --------------------------------------------------------------------------------------------

    def find(self, group_id: str) -> Group | None:
        return self.groups.get(group_id)

    def classic(self, group_id: str) -> ClassicGroup | None:
        """The group to join, made if need be; None where members of another kind are in it."""
        return self._of_kind(group_id, ClassicGroup)

    def consumer(self, group_id: str) -> ConsumerGroup | None:
        return self._of_kind(group_id, ConsumerGroup)

    def share(self, group_id: str) -> ShareGroup | None:
        return self._of_kind(group_id, ShareGroup)

    def upgrade(self, group_id: str, take_over: Callable[[ClassicGroup, ConsumerGroup], bool]) -> ConsumerGroup | None:
        """A member of KIP-848 comes to a classic group with members; None if they cannot be taken over."""
        classic = self.groups.get(group_id)
        if not isinstance(classic, ClassicGroup):
            return None
        made = ConsumerGroup(group_id, self._make_id, self.limits)
        if not take_over(classic, made):
            return None
        self.groups[group_id] = made
        made.changed = True
        return made

    def mixed(self, group_id: str) -> ConsumerGroup | None:
        """The KIP-848 group that a classic member meets there, if it has members."""
        group = self.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) and group.members else None

    def make_id(self) -> str:
        return self._make_id()

    def _of_kind(self, group_id: str, kind: type[G]) -> G | None:
        group = self.groups.get(group_id)
        if isinstance(group, kind):
            return group
        if group is not None and (group.members or ShareGroup in (kind, type(group))):
            return None
        if group is None and len(self.groups) >= GROUPS_MAX:
            return None
        made = kind(group_id, self._make_id, self.limits)
        self.groups[group_id] = made
        return made

    @staticmethod
    def check_id(group_id: str) -> GroupFault:
        fine = group_id and not MARKS & set(group_id) and len(group_id.encode()) <= GROUP_ID_BYTES_MAX
        return GroupFault.NONE if fine else GroupFault.INVALID_GROUP_ID

    # -- offsets ---------------------------------------------------------------------------------------------------

    def may_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> GroupFault:
        group = self.groups.get(group_id)
        if group is None:
            return GroupFault.ILLEGAL_GENERATION if generation >= 0 else GroupFault.NONE
        return group.check_commit(member_id, instance_id, generation, now_ms)

    def commit(self, group_id: str, commits: dict[TopicPartition, Commit]) -> Ticket | None:
        """Keep offsets; the ticket is that of the last one. Ask `may_commit` first."""
        if group_id not in self.groups:
            self.groups[group_id] = ClassicGroup(group_id, self._make_id, self.limits)
        ticket = None
        held = self.offsets.setdefault(group_id, {})
        for at, commit in commits.items():
            held[at] = commit
            ticket = self._journal.put("kafka-offset", _key(group_id, at), commit.pack())
        return ticket

    def commit_pending(self, producer_id: int, group_id: str, commits: dict[TopicPartition, Commit]) -> Ticket | None:
        """Offsets that count once the producer's transaction commits."""
        held = self.pending.setdefault(producer_id, {})
        ticket = None
        for at, commit in commits.items():
            held[group_id, at] = commit
            key = str(producer_id).encode() + b"\0" + _key(group_id, at)
            ticket = self._journal.put("kafka-pending-offset", key, commit.pack())
        return ticket

    def finish_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Called as the decision is applied, live and while recovering: the journal's order makes both the same."""
        for (group_id, at), one in self.pending.pop(producer_id, {}).items():
            if commit:
                self.offsets.setdefault(group_id, {})[at] = one
                self.groups.setdefault(group_id, ClassicGroup(group_id, self._make_id, self.limits))

    def offset(self, group_id: str, at: TopicPartition) -> Commit | None:
        return self.offsets.get(group_id, {}).get(at)

    def is_unstable(self, group_id: str, at: TopicPartition) -> bool:
        """A transaction that is still open has an offset for it."""
        return any((group_id, at) in held for held in self.pending.values())

    def delete_offsets(self, group_id: str, ats: Iterable[TopicPartition]) -> Ticket | None:
        held = self.offsets.get(group_id, {})
        ticket = None
        for at in list(ats):
            if held.pop(at, None) is not None:
                ticket = self._journal.put("kafka-offset", _key(group_id, at), None)
        return ticket

    def delete_group(self, group_id: str) -> tuple[GroupFault, Ticket | None]:
        group = self.groups.get(group_id)
        if group is None:
            return GroupFault.GROUP_ID_NOT_FOUND, None
        if group.members:
            return GroupFault.NON_EMPTY_GROUP, None
        self.delete_offsets(group_id, list(self.offsets.get(group_id, {})))
        del self.groups[group_id]
        self.offsets.pop(group_id, None)
        return GroupFault.NONE, self._journal.put("kafka-group", group_id.encode(), None)

    def forget(self, start: str) -> Iterator[None]:
        """Groups whose key begins so, members, offsets and all: their tenant is gone."""
        for producer_id, held in list(self.pending.items()):
            for group_id, at in [one for one in held if one[0].startswith(start)]:
                del held[group_id, at]
                self._journal.put("kafka-pending-offset", str(producer_id).encode() + b"\0" + _key(group_id, at), None)
                yield
        for group_id in [one for one in {**self.groups, **self.offsets} if one.startswith(start)]:
            for at in list(self.offsets.get(group_id, ())):
                self.delete_offsets(group_id, [at])
                yield
            self.groups.pop(group_id, None)
            self.offsets.pop(group_id, None)
            self._journal.put("kafka-group", group_id.encode(), None)
            yield

    def delete_topic(self, topic: str, is_ours: Callable[[str], bool] = lambda group_id: True) -> None:
        """The topic is gone; its offsets mean nothing in one made again under its name."""
        for group_id, held in self.offsets.items():
            if is_ours(group_id):
                self.delete_offsets(group_id, [at for at in held if at[0] == topic])

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int, wall_ms: int) -> None:
        """Sessions are counted on a clock that never jumps, the age of offsets in wall time."""
        for group in list(self.groups.values()):
            group.tick(now_ms)
            group.empty_since_ms = 0 if group.members else group.empty_since_ms or wall_ms
            self.keep(group)
            if not group.members and self._is_forgotten(group, wall_ms):
                self.delete_group(group.group_id)

    def _is_forgotten(self, group: Group, wall_ms: int) -> bool:
        held = self.offsets.get(group.group_id, {})
        newest = max((commit.commit_ms for commit in held.values()), default=0)
        unused = group.generation == 0 and not group.pending if isinstance(group, ClassicGroup) else group.epoch == 0
        if unused and not held:
            return True  # it was asked for and nobody came
        return max(newest, group.empty_since_ms) + self.limits.offsets_retention_ms < wall_ms

    def next_ms(self) -> int | None:
        times = [at for group in self.groups.values() if group.members and (at := group.next_ms()) is not None]
        return min(times, default=None)

    def refresh(self, lookup_of: Callable[[str], TopicLookup]) -> None:
        """Topics came or went: groups that the broker assigns for look again."""
        for group in self.groups.values():
            if not isinstance(group, ClassicGroup):
                group.refresh(lookup_of(group.group_id))

    def keep(self, group: Group) -> None:
        """Journal what a restart needs, if it changed. Nobody waits for it: without it members just join again."""
        if group.changed:
            group.changed = False
            if self.groups.get(group.group_id) is group:
                self._journal.put("kafka-group", group.group_id.encode(), _pack_group(group))

    # -- journal ---------------------------------------------------------------------------------------------------

    def _apply_group(self, key: bytes, value: bytes | None) -> None:
        group_id = key.decode()
        if value is None:
            self.groups.pop(group_id, None)
            self.offsets.pop(group_id, None)
        else:
            self.groups[group_id] = _unpack_group(group_id, value, self._make_id, self.limits)

    def _apply_offset(self, key: bytes, value: bytes | None) -> None:
        group_id, at = _parse_key(key)
        held = self.offsets.setdefault(group_id, {})
        if value is None:
            held.pop(at, None)
        else:
            held[at] = Commit.unpack(value)
            self.groups.setdefault(group_id, ClassicGroup(group_id, self._make_id, self.limits))

    def _apply_pending(self, key: bytes, value: bytes | None) -> None:
        producer, _, rest = key.partition(b"\0")
        held = self.pending.setdefault(int(producer), {})
        if value is None:
            held.pop(_parse_key(rest), None)
        else:
            held[_parse_key(rest)] = Commit.unpack(value)

    def _dump_groups(self) -> Iterator[tuple[bytes, bytes]]:
        for group_id, group in list(self.groups.items()):
            if self.groups.get(group_id) is group:
                yield group_id.encode(), _pack_group(group)

    def _dump_offsets(self) -> Iterator[tuple[bytes, bytes]]:
        """In slices, while commits go on."""
        for group_id, held in list(self.offsets.items()):
            for at in list(held):
                commit = held.get(at)
                if commit is not None:
                    yield _key(group_id, at), commit.pack()

    def _dump_pending(self) -> Iterator[tuple[bytes, bytes]]:
        copied = [(producer_id, list(held.items())) for producer_id, held in self.pending.items()]
        return (
            (str(producer_id).encode() + b"\0" + _key(group_id, at), commit.pack())
            for producer_id, held in copied
            for (group_id, at), commit in held
        )

    def resume(self, now_ms: int) -> None:
        """After recovery: sessions start anew, so that nobody is expired for the time the broker was away."""
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    member.deadline_ms = now_ms + member.session_ms


def _key(group_id: str, at: TopicPartition) -> bytes:
    return b"\0".join((group_id.encode(), at[0].encode(), str(at[1]).encode()))


def _parse_key(key: bytes) -> tuple[str, TopicPartition]:
    group_id, topic, partition = key.split(b"\0")
    return group_id.decode(), (topic.decode(), int(partition))


def _pack_group(group: Group) -> bytes:
    if not isinstance(group, ClassicGroup):
        return json.dumps({"kind": group.kind, "epoch": group.epoch}).encode()
    members = [
        {
            "id": m.member_id,
            "instance": m.instance_id,
            "client": m.client_id,
            "host": m.client_host,
            "session_ms": m.session_ms,
            "rebalance_ms": m.rebalance_ms,
            "protocols": [[name, b64encode(data).decode()] for name, data in m.protocols],
            "assignment": b64encode(m.assignment).decode(),
        }
        for m in (group.members.values() if group.state is State.STABLE else ())
    ]
    document = {
        "kind": group.kind,
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader,
        "members": members,
        "empty_since_ms": group.empty_since_ms,
    }
    return json.dumps(document).encode()


def _unpack_group(group_id: str, value: bytes, make_id: Callable[[], str], limits: GroupLimits) -> Group:
    document: dict[str, Any] = json.loads(value)
    if document["kind"] != ClassicGroup.kind:
        made = (ConsumerGroup if document["kind"] == ConsumerGroup.kind else ShareGroup)(group_id, make_id, limits)
        made.epoch = document["epoch"]
        return made
    group = ClassicGroup(group_id, make_id, limits)
    group.generation = document["generation"]
    group.protocol_type = document["protocol_type"]
    group.empty_since_ms = document["empty_since_ms"]
    for one in document["members"]:
        protocols = [(name, b64decode(data)) for name, data in one["protocols"]]
        member = Member(
            one["id"], one["instance"], one["client"], one["host"], one["session_ms"], one["rebalance_ms"], protocols
        )
        member.assignment = b64decode(one["assignment"])
        group.members[member.member_id] = member
        if member.instance_id is not None:
            group.statics[member.instance_id] = member.member_id
    if group.members:
        group.state, group.protocol, group.leader = State.STABLE, document["protocol"], document["leader"]
    return group

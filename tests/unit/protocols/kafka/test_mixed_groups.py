"""Classic members in a KIP-848 group: they move by joining again, and no partition is ever with two members."""

from __future__ import annotations

import random

from mainstem.broker.groups import classic_members
from mainstem.broker.groups.classic import Join
from mainstem.broker.groups.classic_members import Subscription
from mainstem.broker.groups.consumer import Beat, ConsumerGroup
from mainstem.broker.groups.fault import GroupFault
from mainstem.broker.rights.people import Principal
from mainstem.protocols.kafka.subscription import read_assignment, read_subscription, write_assignment
from tests.protocol.kafka.raw_member import subscription

TOPIC, PARTITIONS = b"t" * 16, 6


class Topics:
    def find(self, name: str) -> tuple[bytes, int] | None:
        return (TOPIC, PARTITIONS) if name == "t" else None

    def names(self, reader: Principal) -> list[str]:
        return ["t"]


class Group:
    """A group, and both kinds of clients as they behave."""

    def __init__(self) -> None:
        self.ids = iter(range(1_000))
        self.group = ConsumerGroup("g", self.make_id)
        self.owned: dict[str, set[int]] = {}
        self.generation: dict[str, int] = {}
        self.classic: set[str] = set()
        self.cooperative: set[str] = set()
        self.now = 0

    def make_id(self) -> str:
        return f"id-{next(self.ids)}"

    def add_classic(self, *, cooperative: bool) -> str:
        name = self._join("", set())
        self.classic.add(name)
        if cooperative:
            self.cooperative.add(name)
        return name

    def _join(self, member_id: str, owned: set[int]) -> str:
        ask = Join(member_id, None, "c", "h", 10_000, 60_000, "consumer", [("range", b"")])
        said = Subscription({"t"}, {("t", index) for index in owned})
        joined = classic_members.join(self.group, ask, said, Topics(), self.make_id, self.now)
        assert joined.fault is GroupFault.NONE
        assert joined.leader != joined.member_id
        fault, given = classic_members.sync(self.group, joined.member_id, None, joined.generation)
        assert fault is GroupFault.NONE
        self.generation[joined.member_id] = joined.generation
        self.owned[joined.member_id] = {index for _, index in given}
        return joined.member_id

    def add_consumer(self) -> str:
        answer = self.group.heartbeat(Beat("", 0, topics=["t"], owned=set(), rebalance_ms=60_000), Topics(), self.now)
        self._told(answer)
        return answer.member_id

    def _told(self, answer: object) -> None:
        self.generation[answer.member_id] = answer.epoch  # type: ignore[attr-defined]
        given = answer.assignment  # type: ignore[attr-defined]
        if given is not None:
            self.owned[answer.member_id] = {index for _, index in given}  # type: ignore[attr-defined]
        self.owned.setdefault(answer.member_id, set())  # type: ignore[attr-defined]

    def beat(self, name: str) -> None:
        self.now += 100
        if name not in self.classic:
            owned = {(TOPIC, index) for index in self.owned[name]}
            self._told(self.group.heartbeat(Beat(name, self.generation[name], owned=owned), Topics(), self.now))
            return
        fault = classic_members.heartbeat(self.group, name, None, self.generation[name], Topics(), self.now)
        if fault is GroupFault.REBALANCE_IN_PROGRESS:
            self._join(name, self.owned[name] if name in self.cooperative else set())
        else:
            assert fault is GroupFault.NONE

    def drop(self, name: str) -> None:
        if name in self.classic:
            assert classic_members.leave(self.group, name, None, Topics()) is GroupFault.NONE
        else:
            self.group.heartbeat(Beat(name, -1), Topics(), self.now)
        del self.owned[name]

    def held_once(self) -> bool:
        held = [index for owned in self.owned.values() for index in owned]
        return len(held) == len(set(held))

    def settled(self) -> bool:
        sizes = [len(owned) for owned in self.owned.values()]
        return self.held_once() and sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1


def test_members_of_both_kinds_share_the_partitions_whatever_comes_and_goes() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        group = Group()
        group.add_consumer()
        for _ in range(12):
            names = list(group.owned)
            if len(names) > 1 and rng.random() < 0.4:
                group.drop(rng.choice(names))
            elif len(names) < 5:
                group.add_consumer() if rng.random() < 0.5 else group.add_classic(cooperative=rng.random() < 0.5)
            for _ in range(rng.choice((0, 3, 40))):
                group.beat(rng.choice(list(group.owned)))
                assert group.held_once(), seed
        for _ in range(6):
            for name in list(group.owned):
                group.beat(name)
        assert group.settled(), (seed, group.owned)


def test_a_member_that_does_not_come_when_it_is_asked_to_loses_its_place() -> None:
    group = Group()
    lazy = group.add_classic(cooperative=True)
    other = group.add_consumer()
    fault = classic_members.heartbeat(group.group, lazy, None, group.generation[lazy], Topics(), 100)
    assert fault is GroupFault.REBALANCE_IN_PROGRESS
    group.now = 60_101
    for name in (lazy, other):
        group.group.members[name].deadline_ms = 1 << 40
    group.group.tick(group.now)
    assert lazy not in group.group.members
    assert (
        classic_members.heartbeat(group.group, lazy, None, group.generation[lazy], Topics(), 0)
        is GroupFault.UNKNOWN_MEMBER_ID
    )


def test_a_classic_member_that_lost_its_instance_id_is_fenced_and_its_successor_stays() -> None:
    group = Group()
    group.add_consumer()
    ask = Join("", "i", "c", "h", 10_000, 10_000, "consumer", [("range", b"")])
    said = Subscription({"t"}, set())
    old, new = (classic_members.join(group.group, ask, said, Topics(), group.make_id, 0) for _ in range(2))
    assert old.member_id != new.member_id
    assert (
        classic_members.heartbeat(group.group, old.member_id, "i", old.generation, Topics(), 0)
        is GroupFault.FENCED_INSTANCE_ID
    )
    assert classic_members.sync(group.group, old.member_id, "i", old.generation)[0] is GroupFault.FENCED_INSTANCE_ID
    assert classic_members.leave(group.group, old.member_id, "i", Topics()) is GroupFault.FENCED_INSTANCE_ID
    assert group.group.check_commit(new.member_id, "i", new.generation + 1, 0) is GroupFault.ILLEGAL_GENERATION
    assert new.member_id in group.group.members
    assert classic_members.leave(group.group, "", "i", Topics()) is GroupFault.NONE
    assert new.member_id not in group.group.members


def test_what_members_say_is_read_and_what_they_are_told_is_written() -> None:
    found = read_subscription(subscription("orders"))
    assert found == Subscription({"orders"}, set())
    owned = b"\0\1" + subscription("orders")[2:] + write_assignment({("orders", 3), ("orders", 1)})[2:-4]
    assert read_subscription(owned) == Subscription({"orders"}, {("orders", 3), ("orders", 1)})
    partitions = {("a", 0), ("a", 7), ("b", 2)}
    assert read_assignment(write_assignment(partitions)) == partitions
    assert read_subscription(b"\0\1\xff") is None
    assert read_assignment(b"") == set()

"""The KIP-848 group and its assignors as pure state machines: no partition is ever with two members."""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.groups.assign import assign, assign_shared
from mainstem.broker.groups.consumer import Beat, BeatAnswer, ConsumerGroup
from mainstem.broker.groups.fault import GroupFault
from mainstem.broker.groups.share import ShareGroup
from mainstem.broker.rights.people import Principal

A, B = b"a" * 16, b"b" * 16


class Topics:
    def __init__(self, **partitions: int) -> None:
        self.known = {name: (name.encode() * 16, n) for name, n in partitions.items()}

    def find(self, name: str) -> tuple[bytes, int] | None:
        return self.known.get(name)

    def names(self, reader: Principal) -> list[str]:
        return list(self.known)


def group() -> ConsumerGroup:
    numbers = count(1)
    return ConsumerGroup("g", lambda: f"m{next(numbers)}")


class Client:
    """A member that does what it is told."""

    def __init__(self, group: ConsumerGroup, topics: Topics, name: str, **settings: object) -> None:
        self.group, self.topics, self.name = group, topics, name
        self.owned: set[tuple[bytes, int]] = set()
        self.epoch = 0
        self.beat(topics=["a"], **settings)

    def beat(self, now_ms: int = 0, **settings: object) -> BeatAnswer:
        beat = Beat(self.name, self.epoch, owned=set(self.owned), **settings)  # type: ignore[arg-type]
        answer = self.group.heartbeat(beat, self.topics, now_ms)
        if answer.fault is GroupFault.NONE:
            self.epoch = answer.epoch
            if answer.assignment is not None:
                self.owned = answer.assignment
        return answer


def settle(clients: list[Client]) -> None:
    for _ in range(6):
        for client in clients:
            client.beat()
            taken = [one for other in clients for one in other.owned]
            assert len(taken) == len(set(taken)), "a partition with two members"


def test_members_come_and_go_and_share_evenly() -> None:
    one, topics = group(), Topics(a=6)
    clients = [Client(one, topics, "x")]
    settle(clients)
    assert len(clients[0].owned) == 6
    clients += [Client(one, topics, "y"), Client(one, topics, "z")]
    settle(clients)
    assert [len(client.owned) for client in clients] == [2, 2, 2]
    assert one.state == "Stable"
    gone = clients.pop()
    gone.epoch = -1
    gone.beat()
    settle(clients)
    assert [len(client.owned) for client in clients] == [3, 3]


def test_new_partitions_are_given_out() -> None:
    one, topics = group(), Topics(a=1)
    client = Client(one, topics, "x")
    topics.known["a"] = (topics.known["a"][0], 4)
    settle([client])
    assert len(client.owned) == 4


def test_who_does_not_give_up_in_time_is_out() -> None:
    one, topics = group(), Topics(a=2)
    stubborn = Client(one, topics, "x", rebalance_ms=1_000)
    Client(one, topics, "y")
    beat = Beat("x", stubborn.epoch, owned=set(stubborn.owned))
    one.heartbeat(beat, topics, 0)  # it is told, and keeps both
    one.heartbeat(beat, topics, 900)
    one.tick(1_001)
    assert set(one.members) == {"y"}


def test_an_older_epoch_is_fenced_but_a_lost_answer_is_not() -> None:
    one, topics = group(), Topics(a=2)
    client = Client(one, topics, "x")
    epoch = client.epoch
    Client(one, topics, "y")
    client.beat()
    client.beat()
    assert client.epoch > epoch
    lost = one.heartbeat(Beat("x", epoch, owned=set(client.owned)), topics, 0)
    assert lost.fault is GroupFault.NONE
    wrong = one.heartbeat(Beat("x", 77), topics, 0)
    assert wrong.fault is GroupFault.FENCED_MEMBER_EPOCH
    assert one.heartbeat(Beat("nobody", 3), topics, 0).fault is GroupFault.UNKNOWN_MEMBER_ID


def test_a_pattern_chooses_topics_and_an_empty_one_none() -> None:
    one, topics = group(), Topics(apple=1, avocado=2, banana=3)
    client = Client(one, topics, "x")
    client.beat(topics=[], pattern="a.*")
    settle([client])
    assert len(client.owned) == 3
    client.beat(topics=[], pattern="")
    settle([client])
    assert client.owned == set()


@pytest.mark.parametrize("pattern", ["a(?=b)", r"(a)\1", "(", "a" * 2_000])
def test_patterns_that_cannot_be_matched_in_one_pass_are_refused(pattern: str) -> None:
    answer = group().heartbeat(Beat("x", 0, pattern=pattern), Topics(a=1), 0)
    assert answer.fault is GroupFault.INVALID_REGULAR_EXPRESSION


def test_a_pattern_that_makes_others_backtrack_is_answered_at_once() -> None:
    one, topics = group(), Topics(**{"a" * 240: 1, "a" * 239 + "b": 1})
    client = Client(one, topics, "x")
    client.beat(topics=[], pattern="(?:a|aa)*b")
    settle([client])
    assert len(client.owned) == 1


def test_a_static_member_that_is_away_keeps_its_partitions() -> None:
    one, topics = group(), Topics(a=2)
    client = Client(one, topics, "x", instance_id="i")
    settle([client])
    held = set(client.owned)
    client.epoch = -2
    client.beat(instance_id="i")
    again = Client(one, topics, "x2", instance_id="i")
    assert again.owned == held


def test_who_lost_its_instance_id_can_neither_beat_nor_leave_for_its_successor() -> None:
    one, topics = group(), Topics(a=2)
    old = Client(one, topics, "x", instance_id="i")
    epoch, old.epoch = old.epoch, -2
    old.beat(instance_id="i")
    old.epoch = epoch
    assert old.beat(instance_id="i").fault is GroupFault.FENCED_MEMBER_EPOCH, "it left for a while"
    new = Client(one, topics, "x2", instance_id="i")
    for said in (epoch, -1, -2):
        old.epoch = said
        assert old.beat(instance_id="i").fault is GroupFault.FENCED_INSTANCE_ID
    assert new.beat(instance_id="another").fault is GroupFault.UNKNOWN_MEMBER_ID
    assert new.beat(instance_id="i").fault is GroupFault.NONE


def test_offsets_are_committed_in_the_members_own_epoch() -> None:
    one, topics = group(), Topics(a=1)
    client = Client(one, topics, "x")
    assert one.check_commit("x", None, client.epoch, 0) is GroupFault.NONE
    for epoch in (client.epoch - 1, client.epoch + 1, -1):
        assert one.check_commit("x", None, epoch, 0) is GroupFault.STALE_MEMBER_EPOCH
    assert one.check_commit("", None, -1, 0) is GroupFault.UNKNOWN_MEMBER_ID


@given(
    st.integers(0, 5),
    st.integers(0, 12),
    st.integers(0, 7),
    st.integers(0, 1_000),
    st.sampled_from(["uniform", "range"]),
)
def test_assignments_are_complete_and_never_overlap(members: int, of_a: int, of_b: int, seed: int, kind: str) -> None:
    rng = random.Random(seed)
    wants = {f"m{n}": {topic for topic in (A, B) if rng.random() < 0.7} for n in range(members)}
    held = {name: {(A, index) for index in range(of_a) if rng.random() < 0.3} for name in wants}
    result = assign(kind, wants, {A: of_a, B: of_b}, held)
    given_out = [one for ones in result.values() for one in ones]
    assert len(given_out) == len(set(given_out))
    for topic, n in ((A, of_a), (B, of_b)):
        wanted = any(topic in topics for topics in wants.values())
        assert sum(one[0] == topic for one in given_out) == (n if wanted else 0)
    assert all(one[0] in wants[name] for name, ones in result.items() for one in ones)


@given(st.integers(1, 5), st.integers(1, 20))
def test_uniform_is_even_where_all_want_the_same(members: int, partitions: int) -> None:
    wants = {f"m{n}": {A} for n in range(members)}
    sizes = [len(ones) for ones in assign("uniform", wants, {A: partitions}, {}).values()]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 6), st.integers(1, 6))
def test_every_member_of_a_share_group_may_read_every_partition(members: int, partitions: int) -> None:
    result = assign_shared({f"m{n}": {A} for n in range(members)}, {A: partitions})
    assert all(ones == {(A, index) for index in range(partitions)} for ones in result.values())


def test_a_share_group_gives_its_partition_to_all_members() -> None:
    numbers = count(1)
    shared, topics = ShareGroup("g", lambda: f"m{next(numbers)}"), Topics(a=1)
    answers = [shared.heartbeat(Beat(name, 0, topics=["a"]), topics, 0) for name in ("x", "y")]
    assert [answer.assignment for answer in answers] == [{(A, 0)}, {(A, 0)}]
    shared.tick(1_000_000)
    assert shared.state == "Empty"

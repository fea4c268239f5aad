"""The classic group as a pure state machine: every answer, without a socket or a clock."""

from __future__ import annotations

from itertools import count

from mainstem.broker.groups.classic import ClassicGroup, GroupLimits, Join, Joined, State, Synced
from mainstem.broker.groups.fault import GroupFault

LIMITS = GroupLimits(session_ms_min=1_000, session_ms_max=60_000, first_join_ms=100)


class Members:
    """A group and the answers its members got."""

    def __init__(self) -> None:
        numbers = count(1)
        self.group = ClassicGroup("g", lambda: str(next(numbers)), LIMITS)
        self.joined: dict[str, list[Joined]] = {}
        self.synced: dict[str, list[Synced]] = {}

    def join(self, name: str, now_ms: int = 0, member_id: str = "", **settings: object) -> None:
        values: dict[str, object] = {
            "instance_id": None,
            "client_id": name,
            "client_host": "/here",
            "session_ms": 10_000,
            "rebalance_ms": 5_000,
            "protocol_type": "consumer",
            "protocols": [("range", b"m")],
            **settings,
        }
        self.group.join(Join(member_id, **values), now_ms, self.joined.setdefault(name, []).append)  # type: ignore[arg-type]

    def sync(self, name: str, assignments: dict[str, bytes] | None = None, now_ms: int = 0) -> None:
        answer = self.joined[name][-1]
        self.group.sync(
            answer.member_id,
            None,
            answer.generation,
            None,
            None,
            assignments or {},
            now_ms,
            self.synced.setdefault(name, []).append,
        )

    def id(self, name: str) -> str:
        return self.joined[name][-1].member_id

    def make_stable(self, *names: str) -> None:
        for name in names:
            self.join(name)
        self.group.tick(100)
        leader = next(name for name in names if self.joined[name][-1].members)
        for name in names:
            if name != leader:
                self.sync(name, now_ms=100)
        self.sync(leader, {self.id(name): name.encode() for name in names}, 100)


def test_members_that_join_together_share_one_generation() -> None:
    members = Members()
    members.make_stable("a", "b", "c")
    assert {members.joined[name][0].generation for name in "abc"} == {1}
    assert sorted(len(members.joined[name][0].members) for name in "abc") == [0, 0, 3]
    assert [members.synced[name][0].assignment for name in "abc"] == [b"a", b"b", b"c"]
    assert members.group.state is State.STABLE


def test_a_new_member_is_first_told_its_id() -> None:
    members = Members()
    members.join("a", must_know_id=True)
    assert members.joined["a"][0].fault is GroupFault.MEMBER_ID_REQUIRED
    members.join("a", member_id=members.id("a"), must_know_id=True)
    members.group.tick(100)
    assert members.joined["a"][1].fault is GroupFault.NONE


def test_a_newcomer_makes_the_others_join_again() -> None:
    members = Members()
    members.make_stable("a")
    members.join("b", 200)
    assert members.group.heartbeat(members.id("a"), None, 1, 200) is GroupFault.REBALANCE_IN_PROGRESS
    members.join("a", 300, member_id=members.id("a"))
    assert members.joined["a"][-1].generation == members.joined["b"][-1].generation == 2


def test_who_does_not_join_in_time_is_left_out() -> None:
    members = Members()
    members.make_stable("a", "b")
    members.join("c", 200)
    members.join("a", 200, member_id=members.id("a"))
    members.group.tick(200 + 5_000)
    assert members.joined["c"][-1].generation == 2
    assert len(members.group.members) == 2
    assert members.group.heartbeat(members.joined["b"][0].member_id, None, 1, 5_300) is GroupFault.UNKNOWN_MEMBER_ID


def test_silence_ends_a_membership() -> None:
    members = Members()
    members.make_stable("a", "b")
    members.group.heartbeat(members.id("a"), None, 1, 9_000)
    members.group.tick(10_200)
    assert members.group.state is State.PREPARING
    assert list(members.group.members) == [members.id("a")]


def test_a_follower_that_asks_again_gets_the_same_answer() -> None:
    members = Members()
    members.make_stable("a", "b")
    follower = next(name for name in "ab" if not members.joined[name][0].members)
    members.join(follower, 200, member_id=members.id(follower))
    assert members.joined[follower][-1].generation == 1
    assert members.group.state is State.STABLE


def test_the_leader_that_joins_again_starts_a_rebalance() -> None:
    members = Members()
    members.make_stable("a", "b")
    leader = next(name for name in "ab" if members.joined[name][0].members)
    members.join(leader, 200, member_id=members.id(leader))
    assert members.group.state is State.PREPARING


def test_the_protocol_that_most_prefer_and_all_know_is_chosen() -> None:
    members = Members()
    members.join("a", protocols=[("sticky", b""), ("range", b"")])
    members.join("b", protocols=[("range", b""), ("sticky", b"")])
    members.join("c", protocols=[("range", b"")])
    members.group.tick(100)
    assert members.joined["a"][0].protocol == "range"
    members.join("d", 200, protocols=[("other", b"")])
    assert members.joined["d"][0].fault is GroupFault.INCONSISTENT_GROUP_PROTOCOL


def test_a_static_member_takes_its_place_again_without_a_rebalance() -> None:
    members = Members()
    members.join("a", instance_id="i")
    members.group.tick(100)
    members.sync("a", {members.id("a"): b"mine"}, 100)
    old = members.id("a")
    members.join("a", 200, instance_id="i", static_may_skip=True)
    again = members.joined["a"][-1]
    assert again.member_id != old
    assert (again.generation, again.skip_assignment) == (1, True)
    members.sync("a", now_ms=200)
    assert members.synced["a"][-1].assignment == b"mine"
    assert members.group.heartbeat(old, "i", 1, 300) is GroupFault.FENCED_INSTANCE_ID


def test_commits_need_the_current_generation() -> None:
    members = Members()
    assert members.group.check_commit("", None, -1, 0) is GroupFault.NONE
    members.make_stable("a")
    assert members.group.check_commit("", None, -1, 0) is GroupFault.UNKNOWN_MEMBER_ID
    assert members.group.check_commit(members.id("a"), None, 0, 0) is GroupFault.ILLEGAL_GENERATION
    assert members.group.check_commit(members.id("a"), None, 1, 0) is GroupFault.NONE


def test_the_last_one_to_leave_empties_the_group() -> None:
    members = Members()
    members.make_stable("a")
    assert members.group.leave(members.id("a"), None, 200) is GroupFault.NONE
    assert members.group.state is State.EMPTY
    assert members.group.next_ms() is None


def test_every_join_and_sync_is_answered_exactly_once() -> None:
    members = Members()
    members.make_stable("a", "b")
    members.join("c", 200)
    members.join("c2", 210)
    members.group.leave(members.id("a"), None, 220)
    members.group.leave(members.id("b"), None, 230)
    members.group.tick(400)
    assert [len(members.joined[name]) for name in ("a", "b", "c", "c2")] == [1, 1, 1, 1]


def test_a_session_time_out_beyond_the_limits_is_refused() -> None:
    members = Members()
    members.join("a", session_ms=10)
    assert members.joined["a"][0].fault is GroupFault.INVALID_SESSION_TIMEOUT

"""What every turn does with a queue's cursor: compiled and plain cores come to the same state and journal the same."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.cursor.key_order import KeyOrder
from mainstem.cursor.queue_core import QueueCore
from tests.oracles import queue_core

PLAIN = queue_core.QueueCore
KINDS = [PLAIN, QueueCore]


def made(kind: Any, *, exceptions_max: int = 100, journaled: bool = True, order: KeyOrder | None = None) -> Any:
    return kind(0, exceptions_max, journaled, order)


def state(core: Any) -> tuple[Any, ...]:
    counts = core.next, core.head, core.unread, core.ready, core.room, core.waiting, core.timed
    return *counts, list(core._leased), [(op, list(arguments)) for op, arguments in core._pending]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_leased_is_neither_unread_nor_room_any_more(kind: Any) -> None:
    core = made(kind, exceptions_max=5)
    core.enter(12, 4)
    core.hand_out(array("q", [9, 10]), 0, 0)
    assert (core.unread, core.ready, core.room, core.next, core.head) == (2, 2, 3, 11, 13)
    core.hand_out(array("q"), 2, 13)
    assert (core.unread, core.room, core.next) == (0, 3, 13)
    assert (core.ack_plainly(array("q", [10, 10, 7])), core.room) == (1, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_positions_that_were_given_out_already_are_no_news(kind: Any) -> None:
    core = made(kind)
    core.enter(9, 10)
    core.hand_out(array("q", [0, 1, 2]), 0, 0)
    with pytest.raises(AssertionError, match="at or beyond next"):
        core.hand_out(array("q", [2]), 0, 0)
    with pytest.raises(AssertionError, match="only grow"):
        core.enter(8)


@pytest.mark.parametrize("kind", KINDS)
def test_where_a_lease_is_not_a_first_one_it_is_settled_in_full(kind: Any) -> None:
    for make_odd in (
        lambda core: core._leased_again.add(3),
        lambda core: core._deadline_of.update({3: 100}),
        lambda core: core._attempts.update({3: 1}),
        lambda core: setattr(core, "order", KeyOrder()),
    ):
        core = made(kind)
        core.enter(9, 10)
        core.hand_out(array("q", [0, 1]), 0, 0)
        make_odd(core)
        assert (core.ack_plainly(array("q", [0])), list(core._leased)) == (-1, [0, 1])


@pytest.mark.parametrize("journaled", [True, False])
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["enter", "lease", "pass", "skip", "ack"]),
            st.lists(st.integers(1, 9), min_size=1, max_size=9),
        ),
        max_size=30,
    )
)
def test_compiled_and_plain_cores_are_equal(steps: list[tuple[str, list[int]]], journaled: bool) -> None:
    plain, compiled = made(PLAIN, journaled=journaled), made(QueueCore, journaled=journaled)
    for what, numbers in steps:
        told = [_step(core, what, numbers) for core in (plain, compiled)]
        assert told[0] == told[1]
        assert state(plain) == state(compiled)


def _step(core: Any, what: str, numbers: list[int]) -> int:
    """How many leases it ended."""
    if what == "enter":
        core.enter(core.head + sum(numbers), len(numbers))
    elif what == "lease":
        core.hand_out(array("q", [core.next + n for n in sorted(set(numbers))]), 0, 0)
    elif what == "pass":
        core.hand_out(array("q", [core.next]), numbers[0], core.next + 1 + numbers[0])
    elif what == "skip":
        core.pass_over(core.next + numbers[0] - 5, numbers[-1] - 1)
    else:
        ended: int = core.ack_plainly(array("q", [core.next - n for n in numbers]))
        return ended
    return 0

"""The first leases of a queue: compiled and plain are the same set, in ascending order, whatever leaves first."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.cursor._leases import Leases
from tests.oracles.leases import Leases as Plain

KINDS = [Plain, Leases]


def made(kind: Any, *positions: int) -> Any:
    leases = kind()
    leases.add(array("q", positions))
    return leases


@pytest.mark.parametrize("kind", KINDS)
def test_those_that_were_held_are_told(kind: Any) -> None:
    leases = made(kind, 5, 6, 9)
    assert leases.take(array("q", [6, 6, 7])).tolist() == [6]
    assert (list(leases), len(leases), 5 in leases, 6 in leases, 100 in leases) == ([5, 9], 2, True, False, False)
    assert (leases.discard(9), leases.discard(9), list(leases)) == (True, False, [5])


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeated_or_late_position_finds_its_place(kind: Any) -> None:
    leases = made(kind, 5, 9, 12)
    leases.discard(9)
    leases.add(array("q", [5, 7, 9, 20]))
    assert list(leases) == [5, 7, 9, 12, 20]
    assert leases.take(array("q", [9, 5, 7, 12, 20])).tolist() == [9, 5, 7, 12, 20]
    assert not len(leases)


@pytest.mark.parametrize("kind", KINDS)
def test_the_lowest_and_those_of_a_stretch_are_found(kind: Any) -> None:
    leases = made(kind, 5, 6, 9, 12, 20)
    leases.take(array("q", [9, 5]))
    assert (leases.lowest, leases.between(5, 12), leases.between(7, 11), leases.between(13, 99)) == (
        6,
        [6, 12],
        [],
        [20],
    )
    leases.take(array("q", [6, 12, 20]))
    assert (leases.lowest, leases.between(0, 99)) == (None, [])


def test_one_lease_that_stays_does_not_keep_the_places_of_those_that_went() -> None:
    leases = made(Leases, 1)
    for start in range(2, 200_000, 100):
        leases.add(array("q", range(start, start + 100)))
        assert len(leases.take(array("q", range(start, start + 100)))) == 100
    assert list(leases) == [1]
    assert leases.capacity < 1_000


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.lists(st.integers(0, 60), max_size=40)),
            st.tuples(st.just("next"), st.lists(st.integers(1, 9), max_size=40)),
            st.tuples(st.just("take"), st.lists(st.integers(-2, 400), max_size=40)),
            st.tuples(st.just("discard"), st.lists(st.integers(-2, 400), max_size=3)),
            st.tuples(st.just("clear"), st.just([])),
        ),
        max_size=30,
    )
)
def test_compiled_and_plain_leases_are_equal(steps: list[tuple[str, list[int]]]) -> None:
    plain, compiled, last = Plain(), Leases(), 0
    for what, numbers in steps:
        if what == "clear":
            plain.clear()
            compiled.clear()
        elif what == "take":
            assert compiled.take(array("q", numbers)) == plain.take(array("q", numbers))
        elif what == "discard":
            assert [compiled.discard(n) for n in numbers] == [plain.discard(n) for n in numbers]
        else:
            positions = sorted(numbers) if what == "add" else [last := last + step for step in numbers]
            last = max([last, *positions])
            plain.add(array("q", positions))
            compiled.add(array("q", positions))
        assert (list(compiled), len(compiled)) == (list(plain), len(plain))
        assert [n in compiled for n in numbers] == [n in plain for n in numbers]

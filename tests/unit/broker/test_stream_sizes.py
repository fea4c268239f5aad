"""Sizes of a stream's newest records: an array that wraps around says what a dictionary would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.streams.tap import Sizes

MOST = 128
STEPS = st.lists(st.tuples(st.sampled_from(["put", "put", "put", "pop", "front"]), st.integers(1, 200)), max_size=300)


def test_the_newest_are_known_and_older_ones_are_not() -> None:
    sizes = Sizes(MOST)
    for offset in range(1_000, 1_000 + 3 * MOST):
        sizes.set(offset, offset)
    assert [sizes.get(offset) for offset in (999, 1_000, 1_000 + 2 * MOST - 1)] == [0, 0, 0]
    assert (sizes.get(1_000 + 2 * MOST), sizes.get(1_000 + 3 * MOST - 1)) == (1_000 + 2 * MOST, 1_000 + 3 * MOST - 1)
    assert sizes.get(1_000 + 3 * MOST) == 0


@given(STEPS)
def test_it_is_a_dictionary_of_the_newest(steps: list[tuple[str, int]]) -> None:
    sizes, known, end = Sizes(MOST), dict[int, int](), 7
    for what, number in steps:
        if what == "put":
            end += 1 if number < 190 else number  # an unclean stop leaves offsets out
            sizes.set(end, number)
            known = {offset: size for offset, size in known.items() if offset > end - MOST} | {end: number}
        elif what == "pop":
            assert sizes.pop(end - number % 20) == known.pop(end - number % 20, 0)
        else:
            below = {offset: size for offset, size in known.items() if offset < end - number}
            assert sizes.pop_below(end - number) == (len(below), sum(below.values()))
            known = {offset: size for offset, size in known.items() if offset not in below}
    assert all(sizes.get(offset) == known.get(offset, 0) for offset in range(end - 2 * MOST, end + 3))

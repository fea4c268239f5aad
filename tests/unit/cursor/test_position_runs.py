"""What a queue's journal says of thousands of positions: the compiled run lists beside their oracle."""

from __future__ import annotations

from array import array
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from mainstem.cursor._position_runs import ascending, run_list
from mainstem.cursor.queue_journal import Op, decode_change, encode_change
from tests.oracles import position_runs

POSITION = st.integers(0, 2**62)
NEAR = st.builds(lambda base, gaps: {base + gap for gap in gaps}, POSITION, st.sets(st.integers(0, 200), min_size=1))
FAR = st.sets(POSITION, min_size=1, max_size=40)


@given(NEAR | FAR, POSITION)
def test_run_lists_are_those_of_the_oracle(positions: set[int], last: int) -> None:
    assert run_list(ascending(positions), last) == position_runs.run_list(sorted(positions), last)


@given(NEAR | FAR, st.randoms(use_true_random=False))
def test_a_change_says_its_positions_in_ascending_order_however_they_came(positions: set[int], random: Random) -> None:
    mixed = list(positions)
    random.shuffle(mixed)
    for given_as in (mixed, array("q", mixed), array("q", sorted(mixed))):
        change = encode_change([(Op.LEASE, given_as), (Op.HEAD, (max(mixed) + 1, 3)), (Op.SETTLE, given_as)])
        assert list(decode_change(change)) == [
            (Op.LEASE, sorted(positions)),
            (Op.HEAD, (max(mixed) + 1, 3)),
            (Op.SETTLE, sorted(positions)),
        ]


def test_ascending_positions_are_not_copied() -> None:
    packed = array("q", [1, 2, 5])
    assert ascending(packed) is packed
    assert ascending(array("q", [5, 1])).tolist() == [1, 5]

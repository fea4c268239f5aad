"""Each kind of fault is certain to come several times, in an order that the seed gives."""

from __future__ import annotations

import itertools
import random
from collections import Counter

from tests.cluster.dealing import deal

KINDS, CYCLES = tuple("abcdefghi"), 20


def dealt(seed: int) -> list[str]:
    return list(itertools.islice(deal(KINDS, random.Random(seed)), CYCLES))


def test_every_kind_is_dealt_at_least_twice_in_twenty_cycles_of_nine_kinds() -> None:
    for seed in range(50):
        counts = Counter(dealt(seed))
        assert set(counts) == set(KINDS)
        assert min(counts.values()) == CYCLES // len(KINDS)


def test_the_first_round_is_as_listed_and_later_ones_are_the_seeds() -> None:
    assert dealt(1)[: len(KINDS)] == list(KINDS)
    assert dealt(1) == dealt(1)
    assert len({tuple(dealt(seed)) for seed in range(10)}) == 10

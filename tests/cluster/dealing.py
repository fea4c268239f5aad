"""Which fault comes next: every kind in each round, so that a run of two rounds has seen each kind twice, after others."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

Kind = TypeVar("Kind")


def deal(kinds: Sequence[Kind], rng: random.Random) -> Iterator[Kind]:
    """Without an end: the first round as they are listed, each later one in an order of its own."""
    yield from kinds
    while True:
        yield from rng.sample(kinds, len(kinds))

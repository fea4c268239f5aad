"""Lists that may be long, for one page of them: sorted and walked a millisecond at a time, in turns with everybody else."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, TypeVar

from mainstem.broker.delivery.turns import Turns

T = TypeVar("T")

SORTED_AT_ONCE = 1_000
LOOKED_AT_ONCE = 50  # between two looks at the clock


def itself(item: T) -> T:
    return item


async def in_order(
    turns: Turns,
    tenant: str,
    items: Iterable[T],
    *,
    key: Callable[[T], Any] = itself,
    where: Callable[[T], bool] | None = None,
) -> Iterator[T]:
    """As `sorted`, which would keep the loop as long as there are items; whoever takes only the first pays for these."""
    pieces: list[list[T]] = []
    work, found = turns.slices(tenant), list(items)
    for begin in range(0, len(found), SORTED_AT_ONCE):
        if work.over:
            await work.next()
        piece = found[begin : begin + SORTED_AT_ONCE]
        pieces.append(sorted(piece if where is None else filter(where, piece), key=key))
    return heapq.merge(*pieces, key=key)


async def in_slices(
    turns: Turns, tenant: str, items: Iterable[T], *, at_once: int = LOOKED_AT_ONCE
) -> AsyncIterator[T]:
    """One after the other, with pauses: what they are taken from must not mind being changed meanwhile."""
    work = turns.slices(tenant)
    for place, item in enumerate(items):
        if place % at_once == at_once - 1 and work.over:
            await work.next()
        yield item

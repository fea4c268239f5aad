"""A histogram of whole numbers. A value costs a bisection and two additions: a batch can afford that, not a message."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """`counts[i]` values are at most `bounds[i]`; the last count is what lies beyond all bounds.

    Not locked: values are added by one thread at a time. Who reads meanwhile may miss the newest value, nothing else.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0  # the sum of all values

    def add(self, value: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def percentile(self, share: float, counts: Sequence[int] | None = None) -> float:
        """About the value that `share` of all values (or of those that `counts` counts) do not exceed."""
        counts = self.counts if counts is None else counts
        left = share * sum(counts)
        for place, count in enumerate(counts):
            if count and left <= count:
                low = self.bounds[place - 1] if place else 0
                high = self.bounds[min(place, len(self.bounds) - 1)]
                return low + (high - low) * left / count
            left -= count
        return 0.0


def times_histogram() -> Histogram:
    """Of nanoseconds, from 10 µs to 10 s."""
    return Histogram([step * 10**power for power in range(4, 10) for step in (1, 2, 5)] + [10**10])


def counts_histogram() -> Histogram:
    """Of how many, from one to a million."""
    return Histogram([step * 10**power for power in range(6) for step in (1, 2, 5)] + [10**6])

"""The broker's one sequence of stamps: nanoseconds, strictly increasing, never given twice, not even after a power cut.

A stamp is wall time where it can be and the next free number where the clock stands still or goes back. Blocks of the
sequence are reserved durably before they are used (a small file, written about twice a minute), so that a restart goes
on beyond everything that was ever given, whatever the clock says by then.
"""

from __future__ import annotations

from collections.abc import Callable

from mainstem.model.clock import Clock

RESERVE_AHEAD_NS = 60_000_000_000


class Stamps:
    def __init__(self, clock: Clock, *, reserved_end: int, reserve: Callable[[int], None]) -> None:
        """`reserve(end)` returns once the new end of the reserved block is durable."""
        self._clock = clock
        self._reserve = reserve
        self.next = reserved_end
        self._reserved_end = reserved_end

    def take(self, count: int) -> int:
        """The first of `count` consecutive stamps."""
        first = max(self._clock.now_ns(), self.next)
        if first + count > self._reserved_end:
            self.extend(first + count)
        self.next = first + count
        return first

    def now_ms(self) -> int:
        return self._clock.now_ns() // 1_000_000

    def extend(self, needed: int = 0) -> None:
        """Reserve the next block. A background task calls it in time, so that `take` need not wait for a disk."""
        end = max(needed, self._clock.now_ns(), self.next) + RESERVE_AHEAD_NS
        self._reserve(end)
        self._reserved_end = end

    def due(self) -> bool:
        return max(self._clock.now_ns(), self.next) + RESERVE_AHEAD_NS // 2 > self._reserved_end

"""The broker's one sequence of stamps: nanoseconds, strictly increasing, never given twice, not even after a power cut.

A stamp is wall time where it can be and the next free number where the clock stands still or goes back. Blocks of the
sequence are reserved durably before they are used (a small file, written every few seconds while anything is appended),
so that a restart goes on beyond everything that was ever given, whatever the clock says by then. A block is short,
because an unclean stop loses the rest of it and stamps then run ahead of the clock by that much for a while.

    stamps = {"end": first stamp not reserved, "clean": settled by a clean stop, nothing was done since}
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from mainstem.model.clock import Clock

RESERVE_AHEAD_NS = 10_000_000_000


class Stamps:
    def __init__(
        self, clock: Clock, *, reserved_end: int, reserve: Callable[[int, bool], None], clean: bool = True
    ) -> None:
        """`reserve(end, clean)` returns once the new end of the reserved block is durable."""
        self._clock = clock
        self._reserve = reserve
        self._reserving = threading.Lock()
        self.next = reserved_end
        self._reserved_end = reserved_end
        self._used = False
        self.clean = clean  # whether the run before was stopped, not killed

    def take(self, count: int) -> int:
        """The first of `count` consecutive stamps."""
        first = max(self._clock.now_ns(), self.next)
        if first + count > self._reserved_end:
            self._extend(first + count)
        self.next = first + count
        self._used = True
        return first

    def now_ms(self) -> int:
        return self._clock.now_ns() // 1_000_000

    def due(self) -> bool:
        """Whether the next block should be reserved now, so that `take` need not wait for a disk."""
        return self._used and max(self._clock.now_ns(), self.next) + RESERVE_AHEAD_NS // 2 > self._reserved_end

    def extend(self) -> None:
        """Reserve the next block; in a thread."""
        self._used = False
        self._extend(max(self._clock.now_ns(), self.next))

    def settle(self) -> None:
        """A clean stop: the next run goes on exactly here."""
        with self._reserving:
            self._reserve(self.next, True)
            self._reserved_end = self.next

    def _extend(self, needed: int) -> None:
        end = needed + RESERVE_AHEAD_NS
        with self._reserving:
            if end > self._reserved_end:
                self._reserve(end, False)
                self._reserved_end = end

"""Time is an argument: the core asks a Clock, never the system."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ns(self) -> int:
        """Wall time in nanoseconds since 1970."""

    def monotonic_ns(self) -> int:
        """Never goes back; for deadlines."""


class SystemClock:
    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


class ManualClock:
    """For tests: stands still until told."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = now_ns
        self._monotonic_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance_ms(self, ms: float) -> None:
        self._now_ns += int(ms * 1_000_000)
        self._monotonic_ns += int(ms * 1_000_000)

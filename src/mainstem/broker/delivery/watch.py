"""Waking whoever waits for a log: long polls, and answers that wait until an offset is stable.

One listener per log, however many wait; nothing runs per partition while nothing happens.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mainstem.log.log import Log


class Waiter(Protocol):
    def wake(self) -> None:
        """More is readable."""


class LogWatch:
    """The waiters of one log."""

    def __init__(self, log: Log) -> None:
        self.waiters: set[Waiter] = set()
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        log.stable_listeners.append(self._moved)

    def when_stable(self, log: Log, offset: int, call: Callable[[], None]) -> None:
        """Call back once everything below `offset` is stable; at once if it is."""
        if log.stable >= offset:
            call()
        else:
            heapq.heappush(self._due, (offset, next(self._order), call))

    def _moved(self, log: Log) -> None:
        while self._due and self._due[0][0] <= log.stable:
            heapq.heappop(self._due)[2]()
        for waiter in tuple(self.waiters):
            waiter.wake()


class Watches:
    def __init__(self) -> None:
        self._by_log: dict[int, LogWatch] = {}

    def of(self, log: Log) -> LogWatch:
        known = self._by_log.get(log.id)
        if known is None:
            known = self._by_log[log.id] = LogWatch(log)
        return known

    def leave(self, log: Log, waiter: Waiter) -> None:
        known = self._by_log.get(log.id)
        if known is not None:
            known.waiters.discard(waiter)

    def forget(self, log_id: int) -> None:
        """The log was deleted; who waits for it looks once more and finds that out."""
        known = self._by_log.pop(log_id, None)
        for waiter in tuple(known.waiters) if known is not None else ():
            waiter.wake()

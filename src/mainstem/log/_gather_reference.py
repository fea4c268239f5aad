"""The open batch of a log, and the promise about it, in plain Python. See `gather.py`."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mainstem.codec._batch_reference import BatchBuilder
from mainstem.log.open_batch import BYTES_MAX, RECORDS_MAX, Waiter

if TYPE_CHECKING:
    from mainstem.log.log import Log
    from mainstem.model.record import Header


logger = logging.getLogger("mainstem.log")


class Ticket:
    __slots__ = ("base_offset", "end_offset", "error", "log", "stable", "stamp", "waiters")

    def __init__(self, log: Log) -> None:
        self.log = log
        self.base_offset = self.end_offset = self.stamp = -1
        self.stable = False
        self.error: Exception | None = None
        self.waiters: list[Waiter] = []

    def wait(self, waiter: Waiter) -> None:
        if self.stable or self.error is not None:
            waiter.released(self)
        else:
            self.waiters.append(waiter)
            if self.end_offset >= 0:
                self.log.on_awaited(self.log)

    @property
    def awaited(self) -> bool:
        return bool(self.waiters)

    def release(self) -> None:
        self.stable = True
        self._tell()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._tell()

    def _tell(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            try:
                waiter.released(self)
            except Exception:  # one publisher's failure is its own
                logger.exception("a publisher could not be told that its records are kept")


class TopicRef:
    def __init__(self, topic: bytes, number: int, log: Log) -> None:
        self.topic = topic
        self.number = number
        self.log = log
        self.gathers = log.gathers

    def renumber(self) -> None:
        raise NotImplementedError

    def open_gather(self, origin: int) -> Gather:
        found = self.gathers[origin]
        return found if found is not None else self.log.open(origin)


class Gather(BatchBuilder):
    def __init__(self, log: Log, origin: int, kind: int) -> None:
        super().__init__()
        self.log = log
        self.origin = origin
        self.kind = kind
        self.ticket = Ticket(log)
        self.routes: list[TopicRef | None] = []
        self._numbers = array("I")

    def add_routed(
        self,
        route: TopicRef,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        time_ms: int,
        flags: int,
    ) -> int:
        """Headers as (name, value) pairs; returns the record's index in the batch."""
        if route.number == 0:
            route.renumber()
        index = self.add(key, value, headers, time_ms, flags)
        self._numbers.append(route.number)
        self.routes.append(route)
        self._close_if_full()
        return index

    def expect(self, size: int, count: int) -> None:
        """About so much will come. The compiled one takes room for it; a list grows by itself."""

    def add_state(self, key: bytes, value: bytes | None, time_ms: int) -> int:
        """A record of the journal: it has no topic."""
        index = self.add(key, value, (), time_ms, 0)
        self._numbers.append(0)
        self.routes.append(None)
        self._close_if_full()
        return index

    def _close_if_full(self) -> None:
        if self.size >= BYTES_MAX or self.count >= RECORDS_MAX:
            self.log.rotate(self)

    def topic_numbers(self) -> bytes:
        """One number per record, as the topic index wants them."""
        return self._numbers.tobytes()

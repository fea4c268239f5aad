"""A live tail: a sink that shows people what is published. It never slows anyone down: what it cannot keep it counts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from mainstem.admin.answers.topics import MessageFacts
from mainstem.admin.messages import Show, record_facts
from mainstem.broker.delivery.live import RecordRef, Sink
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.log.log import Log
from mainstem.model.topic_filter import check_filter

ROWS_MAX = 1_000  # waiting for the reader; beyond it the newest are counted, not kept


class Tail(Sink):
    """`start`, then `await next()` again and again, then `stop`."""

    open_tails: ClassVar[set[Tail]] = set()

    def __init__(
        self,
        namespace: Namespace,
        topic_filter: str,
        allowed: Callable[[bytes], bool] = lambda topic: True,
        shown: Show | None = None,
    ) -> None:
        super().__init__(namespace)
        self.takes_unstored = True
        self._filter = topic_filter.encode()
        check_filter(self._filter)
        self._space = namespace
        self._allowed = allowed
        self._shown = shown
        self._rows: deque[tuple[Log, int, MessageFacts]] = deque()
        self._logs: set[Log] = set()
        self._dropped = 0
        self._news = asyncio.Event()
        self._looks = False

    def start(self) -> None:
        Tail.open_tails.add(self)
        self._space.observers.add(self)
        self._space.subscribe(self._filter, self, True)

    def stop(self) -> None:
        self._space.unsubscribe(self._filter, self)
        for log in self._logs:
            log.stable_listeners.remove(self._wake)
        self._logs.clear()
        Tail.open_tails.discard(self)
        self._space.observers.discard(self)

    async def next(self) -> tuple[list[MessageFacts], int]:
        """What became durable since the last call (an offset leaves only then), and how many records were not kept."""
        while True:
            self._news.clear()
            rows = list[MessageFacts]()
            while self._rows and self._rows[0][0].stable > self._rows[0][1]:
                rows.append(self._rows.popleft()[2])
            if rows or self._dropped or self._looks:
                dropped, self._dropped, self._looks = self._dropped, 0, False
                return rows, dropped
            await self._news.wait()

    def look_again(self) -> None:
        """Rights changed: `next` returns, so that the reader is asked for."""
        self._looks = True
        self._news.set()

    def push(self, record: RecordRef, options: Any) -> bool:
        if not self._allowed(record.topic):
            return True
        if len(self._rows) >= ROWS_MAX:
            self._dropped += 1
        else:
            log = record.log
            assert log is not None
            self._rows.append((log, record.offset, record_facts(0, record.copy(), self._shown)))
            if log not in self._logs:
                self._logs.add(log)
                log.stable_listeners.append(self._wake)
        self._news.set()
        return True

    def push_unstored(self, record: RecordRef, options: Any) -> bool:
        return self.push(record, options)

    def choose(self, record: RecordRef) -> Any:
        return True

    def merge(self, options: list[Any]) -> Any:
        return True

    def filters(self) -> Sequence[bytes]:
        return [self._filter]

    def _wake(self, log: Log) -> None:
        self._news.set()

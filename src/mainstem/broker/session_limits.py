"""How much an absent session may hold back from retention: messages, bytes, time. Then its hold ends, and is counted.

Counting goes through the topic index, so that it costs what matches; only sessions furthest behind are looked at, a few in
each round, because only they decide what retention may take.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from mainstem.broker.sessions import Session
from mainstem.log.log import Log
from mainstem.model.topic_filter import literal_filter

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker

logger = logging.getLogger("mainstem.broker")

MESSAGES_MAX = 100_000
BYTES_MAX = 64 << 20
LOOKED_AT_MAX = 20  # sessions in a round
NS_PER_MS = 1_000_000


class HeldLimits:
    def __init__(
        self, broker: Broker, *, ms_max: int, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        self._broker = broker
        self._ms_max = ms_max
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.on_over: Callable[[Session], None] = lambda session: None

    def check(self, holders: list[Session]) -> list[Session]:
        """Those that go on holding, in order; the hold of the others is ended."""
        kept = []
        for looked_at, session in enumerate(holders):
            if not session.left_ns or looked_at >= LOOKED_AT_MAX or not self._is_over(session):
                kept.append(session)
                continue
            logger.warning("session %r holds too much: retention no longer waits for it", session.client_id)
            self.on_over(session)
        return kept

    def _is_over(self, session: Session) -> bool:
        if self._broker.clock.now_ns() - session.left_ns > self._ms_max * NS_PER_MS:
            return True
        namespace = self._broker.namespaces.get(session.key.partition(b"\0")[0].decode())
        if namespace is None:
            return True
        filters = [literal_filter(one.filter) for one in session.subscriptions.values() if one.qos]
        messages = size = 0
        for stem in namespace.stems.values():
            found = self._count(stem, filters, session.position)
            messages += found
            size += found * _record_bytes(stem)
        return messages > self.messages_max or size > self.bytes_max

    def _count(self, log: Log, filters: list[bytes], position: int) -> int:
        """Overlapping filters are counted twice: a limit, not a figure."""
        index = log.index
        assert index is not None
        start = log.offset_of_stamp(position)
        return sum(index.count(index.topics.bitmap(one), start, log.written) for one in filters)


def _record_bytes(log: Log) -> int:
    records = log.count(log.start_offset, log.written)
    return log.engine.stat().size_bytes // records if records > 0 else 0

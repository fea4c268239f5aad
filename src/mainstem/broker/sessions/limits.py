"""How much an absent session may hold back from retention: messages, bytes, time. Then its hold ends, and is counted.

Counting goes through the topic index, so that it costs what matches; only sessions furthest behind are looked at, a few in
each round, because only they decide what retention may take.

`PlannedHolds`: a round of maintenance asks for each log what sessions need of it. They are looked at once for all of it, in
slices, and each log costs a look into a trie of their filters.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from mainstem.broker.sessions.sessions import Session, Sessions
from mainstem.broker.sessions.table import Hold
from mainstem.log.log import Log
from mainstem.log.retention import NO_STAMP
from mainstem.model.errors import CorruptFrame
from mainstem.model.topic_filter import literal_filter
from mainstem.model.topic_tries import FilterTrie
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace

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
        """Overlapping filters are counted twice: a limit, not a figure. What lies in the object store counts from the next
        part on, and what is lost there not at all: no hold ends too early, and no round of maintenance waits or fails."""
        index = log.index
        assert index is not None
        try:
            try:
                start = log.offset_of_stamp(position)
            except NotLocal as missing:
                parts = log.engine.stat().parts
                start = next((part.end_offset for part in parts if part.end_offset > missing.offset), log.written)
            bitmaps, known = [index.topics.bitmap(one) for one in filters], index.known(start, log.written)
            return sum(index.count(bitmap, *stretch) for bitmap in bitmaps for stretch in known)
        except CorruptFrame:
            return 0


def _record_bytes(log: Log) -> int:
    records = log.count(log.start_offset, log.written)
    return log.engine.stat().size_bytes // records if records > 0 else 0


class PlannedHolds:
    """The oldest stamp that a session needs of each log. Sessions only move on: what was true at first keeps too much.

    One that comes or subscribes meanwhile is added (`Sessions.on_saved`).
    """

    def __init__(self) -> None:
        self._oldest: dict[str, int] = {}  # by namespace: in its stems
        self._by_filter: dict[tuple[str, bytes], int] = {}
        self._tries: dict[str, FilterTrie] = {}

    async def look_at(self, broker: Broker, sessions: Sessions, held: HeldLimits) -> None:
        """First those furthest behind: whose hold ends now is not asked any more."""
        work, behind = broker.turns.slices(), list[tuple[int, bytes]]()
        for hold in sessions.holds():
            if work.over:
                await work.next()
            if hold.absent:
                heapq.heappush(behind, (-hold.oldest, hold.key))
                if len(behind) > LOOKED_AT_MAX:
                    heapq.heappop(behind)
        for _, key in behind:
            await work.next()
            session = sessions.find(key)
            if session is not None and session.is_holding():
                held.check([session])
        for hold in sessions.holds():
            if work.over:
                await work.next()
            self._add(hold)

    def add(self, session: Session) -> None:
        hold = session.hold()
        if hold is not None:
            self._add(hold)

    def _add(self, hold: Hold) -> None:
        name, oldest = hold.key.partition(b"\0")[0].decode(), hold.oldest
        self._oldest[name] = min(oldest, self._oldest.get(name, oldest))
        trie = self._tries.setdefault(name, FilterTrie())
        for one in hold.filters:
            if oldest < self._by_filter.get((name, one), NO_STAMP):  # once for each that is older than those before
                self._by_filter[name, one] = oldest
                trie.add(one, oldest)

    def of(self, namespace: Namespace, log: Log) -> int:
        """NO_STAMP: nothing."""
        topic = namespace.topic_of_log.get(log)
        if topic is None:
            return self._oldest.get(namespace.name, NO_STAMP)
        trie = self._tries.get(namespace.name)
        return min(cast(list[int], trie.match(topic)), default=NO_STAMP) if trie is not None else NO_STAMP

"""A log without a broker: its stamps, its reservation and its engine, all real; ticks and syncs when the test says so."""

from __future__ import annotations

from pathlib import Path

from mainstem.log.durability import parse_durability
from mainstem.log.gather import Ticket, TopicRef
from mainstem.log.log import Log
from mainstem.log.stamps import Stamps
from mainstem.log.topic_index import TopicIndex
from mainstem.model.clock import ManualClock
from mainstem.model.origin import Origin
from mainstem.model.topic_tries import TopicTrie
from mainstem.storage.engine import Engine
from mainstem.storage.engines import EngineOptions, open_engine
from mainstem.storage.reservation import Reservation

LOG_ID = 5


class NumberedTopic(TopicRef):
    """A topic under its number in the log's dictionary."""

    def __init__(self, topic: bytes, log: Log) -> None:
        super().__init__(topic, log.index.topics.number(topic) if log.index is not None else 1, log)

    def renumber(self) -> None:
        self.number = self.log.index.topics.number(self.topic) if self.log.index is not None else 1


class TestLog:
    """One log of one directory; `reopen` is a start after a clean stop, or after none."""

    __test__ = False

    def __init__(
        self,
        path: Path,
        *,
        engine: str = "segment",
        durability: str = "sync",
        shared: bool = False,
        segment_bytes: int = 4096,
        clock: ManualClock | None = None,
        store: Engine | None = None,
    ) -> None:
        self.path, self.engine_name, self.shared, self.segment_bytes = path, engine, shared, segment_bytes
        self.durability = parse_durability(durability)
        self.clock = clock or ManualClock()
        self.stamps = Stamps(self.clock, reserved_end=0, reserve=lambda end, clean: None)
        self.log = self._open(store)

    def _open(self, store: Engine | None = None) -> Log:
        options = EngineOptions(segment_bytes=self.segment_bytes)
        store = store or open_engine(self.engine_name, self.path, LOG_ID, options=options)
        index = TopicIndex.open(None, TopicTrie()) if self.shared else None
        return Log(LOG_ID, store, self.stamps, Reservation.open(self.path), durability=self.durability, index=index)

    def reopen(self, *, clean: bool) -> Log:
        if clean:
            self.log.close()
        self.log = self._open()
        return self.log

    def put(
        self, value: bytes | None, key: bytes | None = None, topic: bytes = b"t", *, time_ms: int | None = None
    ) -> Ticket:
        route = NumberedTopic(topic, self.log)
        gather = route.open_gather(Origin.BROKER)
        time_ms = self.clock.now_ns() // 1_000_000 if time_ms is None else time_ms
        gather.add_routed(route, key if key is not None else topic, value, (), time_ms, 8 if key is None else 0)
        return gather.ticket

    def tick(self) -> None:
        self.log.write()

    def sync(self) -> None:
        self.log.write()
        end = self.log.written
        self.log.sync()
        self.log.mark_stable(end)

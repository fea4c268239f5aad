"""What a queue holds, and which records are its own: reaches that say what enters, a cursor for each priority.

`Queue` (queue.py) adds who consumes it and how leases end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.broker.delivery.live import RecordRef
from mainstem.broker.queues.bindings import FILTERS_MAX, Reach, Reaches
from mainstem.broker.queues.levels import Level
from mainstem.broker.queues.properties import priority_of
from mainstem.broker.queues.queue_sink import Entry, QueueSink
from mainstem.broker.queues.settings import QueueSettings
from mainstem.model.condition import parse_condition
from mainstem.model.crossing import headers_for_conditions
from mainstem.model.errors import Overloaded

if TYPE_CHECKING:
    from mainstem.broker.queues.registry import Queues


class QueueContents:
    sink: QueueSink
    _first: Level  # the only one, unless it has priorities

    def __init__(
        self, queues: Queues, queue_id: int, name: str, settings: QueueSettings, created: int, condition: str
    ) -> None:
        self.queues = queues
        self.namespace = queues.namespace
        self.id = queue_id
        self.name = name
        self.declared = settings  # as asked for; `settings` is what it obeys, with its policy
        self.settings = queues.policies.effective(name, settings)
        self.created = created
        self.condition = parse_condition(condition)
        self.reaches = Reaches()
        self._levels: dict[int, Level] = {}

    # -- what it is

    @property
    def picky(self) -> bool:
        """Whether more than topic and exchange decides what enters, or where."""
        return self.condition is not None or self.settings.priority_max > 0

    @property
    def levels(self) -> list[Level]:
        """Highest priority first."""
        if len(self._levels) == 1:
            return list(self._levels.values())
        return [self._levels[priority] for priority in sorted(self._levels, reverse=True)]

    @property
    def ready(self) -> int:
        if len(self._levels) == 1:
            return self._first.cursor.ready
        return sum(level.cursor.ready for level in self._levels.values())

    @property
    def unacked(self) -> int:
        return sum(level.cursor.leased for level in self._levels.values())

    @property
    def dead_count(self) -> int:
        return sum(len(level.cursor.dead) for level in self._levels.values())

    @property
    def head_stamp(self) -> int:
        return self.queues.ticker.head_stamp

    @property
    def holds_any(self) -> bool:
        """Whether it has records that are not settled: ready, held by someone, delayed or dead."""
        return bool(
            self.ready
            or self.unacked
            or self.dead_count
            or any(level.cursor.delayed for level in self._levels.values())
        )

    def settled_stamp(self) -> int:
        """Everything below it is settled here."""
        if self.holds_any:
            return min(level.cursor.floor for level in self._levels.values())
        return self.head_stamp

    def held_stamp(self) -> int | None:
        """What retention must keep for this queue: from here on. None: nothing."""
        if not self.settings.durable or not self.holds_any:
            return None
        return min(level.cursor.floor for level in self._levels.values() if level.cursor.floor < level.cursor.head)

    def to_document(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "created": self.created,
            "settings": self.declared.to_document(),
            "condition": self.condition.text if self.condition is not None else "",
            "reaches": [
                {"kind": r.kind, "filter": r.filter.decode(), "exchange": r.exchange, "start": r.start, "end": r.end}
                for r in self.reaches.all
            ],
        }

    # -- ways in

    @property
    def filters(self) -> list[bytes]:
        return self.reaches.filters()

    def add_reach(self, reach: Reach) -> bool:
        """From `reach.start` on; False if it is there already."""
        if self.reaches.find_open(reach) is not None:
            return False
        self.reaches.forget_before(self.settled_stamp())
        if len(self.reaches.all) >= FILTERS_MAX:
            raise Overloaded(
                f"queue {self.name!r} has {FILTERS_MAX} bindings; the limit is per queue",
                fix="bind it once with a wildcard",
            )
        self.reaches.add(reach)
        self._subscribe(reach.filter)
        self._forget_read()
        return True

    def end_reach(self, wanted: Reach, stamp: int) -> Reach | None:
        """What entered before `stamp` stays."""
        reach = self.reaches.find_open(wanted)
        if reach is not None:
            self.reaches.close(reach, stamp)
            self._subscribe(reach.filter)
            self._forget_read()
        return reach

    def _subscribe(self, topic_filter: bytes) -> None:
        entries = [reach.entry() for reach in self.reaches.open_ones() if reach.filter == topic_filter]
        if entries:
            entry = entries[0] if len(entries) == 1 else self.sink.merge(entries)
            self.namespace.subscribe(topic_filter, self.sink, entry)
        else:
            self.namespace.unsubscribe(topic_filter, self.sink)

    def _forget_read(self) -> None:
        for level in self._levels.values():
            level.backlog.forget_entries()
            level.forget_read()

    def entry_of(self, topic: bytes, stamp: int) -> Entry | None:
        return self.reaches.entry_of(topic, stamp)

    def takes(self, record: RecordRef) -> bool:
        """The whole predicate on a stored record."""
        entry = self.entry_of(record.topic, record.stamp)
        return entry is not None and self.sink.accepts(record, entry) and self.holds(record)

    def holds(self, record: RecordRef) -> bool:
        return self.condition is None or self.condition.holds(record.key, headers_for_conditions(record.outline()))

    def priority_of(self, record: RecordRef) -> int:
        if not self.settings.priority_max:
            return 0
        return min(priority_of(record.outline()) or 0, self.settings.priority_max)

"""Views: a named filter over everything stored, at the log's own (sparse) offsets. Making one reads nothing.

As a Kafka topic a view has permanent partition slots: first the stems, then the logs of matching dedicated topics as
they appear. A slot is never renumbered; when its log is gone it is empty for ever.

Who reads a view is not shown what a rule denies them, unless the view `grants` it: then its maker, an admin, meant so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mainstem.broker.delivery.live import RecordRef
from mainstem.broker.topics.last_values import LastValues
from mainstem.broker.topics.reading import Chosen, Fetched, batches_of, stored_batches_of, stored_records_of
from mainstem.broker.topics.time_search import find_time_stored, newest_stored
from mainstem.log.log import Log
from mainstem.model.condition import Condition
from mainstem.model.crossing import headers_for_conditions
from mainstem.model.record import Record
from mainstem.model.topic_filter import filter_levels, matches, overlap
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.broker.topics.topic import Topic

SLOTS_MAX = 1_000


class View:
    def __init__(
        self,
        namespace: Namespace,
        view_id: int,
        name: bytes,
        topic_filter: bytes,
        condition: Condition | None,
        options: dict[str, Any],
        created: int,
    ) -> None:
        self.namespace = namespace
        self.id = view_id
        self.name = name
        self.filter = topic_filter
        self.condition = condition
        self.options = options
        self.created = created
        self.slots: list[int | None] = []  # slot → log id, None once the log is gone
        self.table = LastValues(self, options["last_by"]) if "last_by" in options else None

    @property
    def grants(self) -> bool:
        return bool(self.options.get("grants"))

    def hidden(self, denied: Sequence[bytes]) -> Sequence[bytes]:
        """Of the filters that rules deny a reader, those that hide something of this view."""
        if self.grants or not denied:
            return ()
        own = filter_levels(self.filter)
        return [one for one in denied if overlap(filter_levels(one), own)]

    def covers(self, topic: bytes) -> bool:
        return matches(self.filter, topic)

    def shows(self, record: RecordRef) -> bool:
        """Whether a record of its filter is part of it: by its condition, and in a table as the newest of its key."""
        if self.condition is None and self.table is None:
            return True
        stored = record.copy()
        if self.condition is not None and not self.condition.holds(stored.key, headers_for_conditions(stored)):
            return False
        if self.table is not None:
            self.table.refresh()
            return self.table.is_last(stored)
        return True

    def count(self) -> int | None:
        """How many records it shows; None where only reading them all would tell."""
        if self.table is not None:
            try:
                return len(self.table)
            except NotLocal:  # not built yet
                return None
        if self.condition is not None:
            return None
        slots = [slot for number in range(len(self.slots)) if (slot := self.slot(number)) is not None]
        return sum(slot.count(slot.start_offset, slot.stable_offset) for slot in slots)

    def add_slots(self) -> None:
        """Give a slot to each log that may hold matching records and has none yet."""
        known = set(self.slots)
        for log, _ in self.namespace.logs_of(self.filter):
            self._add_slot(log, known)

    def add_topic(self, topic: Topic) -> None:
        """The same for one topic that was declared, moved or got partitions."""
        if not self.covers(topic.name):
            return
        known = set(self.slots)
        for partition in topic.partitions:
            for span in partition.spans:
                self._add_slot(span.log, known)

    def _add_slot(self, log: Log, known: set[int | None]) -> None:
        if log.id not in known and len(self.slots) < SLOTS_MAX:
            known.add(log.id)
            self.namespace.broker.save_slot(self, len(self.slots), log.id)
            self.slots.append(log.id)

    def slot(self, number: int, hidden: Sequence[bytes] = ()) -> ViewSlot | None:
        log_id = self.slots[number] if number < len(self.slots) else None
        log = self.namespace.broker.logs.by_id.get(log_id) if log_id is not None else None
        return ViewSlot(self, log, hidden) if log is not None else None


class ViewSlot:
    """One log of a view, read by offset, without the topics that are hidden from the reader."""

    def __init__(self, view: View, log: Log, hidden: Sequence[bytes] = ()) -> None:
        self.view = view
        self.log = log
        self._topic_of = view.namespace.topic_of
        self._hidden = hidden
        self._all_hidden = bool(hidden) and log.index is None and any(matches(one, self._topic()) for one in hidden)

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def stable_offset(self) -> int:
        return self.log.stable

    @property
    def epoch(self) -> int:
        return self.log.epoch

    def read(self, offset: int, bytes_max: int, end: int | None = None, *, until_ns: int = 0) -> Fetched:
        if self._all_hidden:
            return Fetched(next_offset=max(offset, self.stable_offset))
        if self.view.table is not None:
            return self._read_table(offset, bytes_max, until_ns)
        if self.log.index is not None:
            return self._chosen().batches(offset, self.log.stable if end is None else end, bytes_max, until_ns=until_ns)
        return stored_batches_of(
            self.log, offset, bytes_max, self._topic_of, self._topic(), self.view.condition, until_ns=until_ns
        )

    def _read_table(self, offset: int, bytes_max: int, until_ns: int) -> Fetched:
        """As a compacted topic: of each key the newest record only."""
        records, after = self.records(offset, bytes_max, until_ns=until_ns)
        return batches_of(records, after, self.log)

    def records(
        self, offset: int, bytes_max: int, *, count_max: int = 10_000, until_ns: int = 0
    ) -> tuple[list[Record], int]:
        """Matching records from `offset` on, and where to go on; of a last-value view the newest of each key."""
        records, after = self.all_records(offset, bytes_max, count_max=count_max, until_ns=until_ns)
        table = self.view.table
        if table is not None:
            table.refresh()
            records = [record for record in records if table.is_last(record)]
        return records, after

    def all_records(
        self, offset: int, bytes_max: int, *, count_max: int = 10_000, until_ns: int = 0
    ) -> tuple[list[Record], int]:
        if self._all_hidden:
            return [], max(offset, self.stable_offset)
        if self.log.index is not None:
            return self._chosen().records(offset, self.log.stable, bytes_max, count_max=count_max, until_ns=until_ns)
        return stored_records_of(
            self.log,
            offset,
            bytes_max,
            self._topic_of,
            self._topic(),
            self.view.condition,
            count_max=count_max,
            until_ns=until_ns,
        )

    def count(self, start: int, end: int) -> int:
        """Matching records in [start, end): a view's lag."""
        if self._all_hidden:
            return 0
        if self.log.index is not None:
            return self._chosen().count(max(start, self.log.start_offset), end)
        if self.view.condition is None:
            return self.log.count(start, end)
        total = 0
        while start < end:
            records, after = self.records(start, 1 << 20)
            total += sum(record.offset < end for record in records)
            if after <= start:  # an open transaction: not even its reader sees more
                break
            start = after
        return total

    def find_time(self, time_ms: int) -> tuple[int, int] | None:
        """The first matching record at or after that time: (offset, its time); None when all are older."""
        if self._all_hidden:
            return None
        if self.log.index is not None:
            return self._chosen().find_time(time_ms, self.start_offset, self.stable_offset)
        return find_time_stored(self.log, time_ms, self.start_offset, self.stable_offset, self.view.condition)

    def newest(self) -> tuple[int, int] | None:
        """The first of the matching records with the highest time: (offset, its time)."""
        if self._all_hidden:
            return None
        if self.log.index is not None:
            return self._chosen().newest(self.start_offset, self.stable_offset)
        return newest_stored(self.log, self.start_offset, self.stable_offset, self.view.condition)

    def _chosen(self) -> Chosen:
        assert self.log.bitmaps is not None
        bitmap = self.log.bitmaps.of_without(self.view.filter, self._hidden)
        return Chosen(self.log, self._topic_of, bitmap=bitmap, condition=self.view.condition, name_topic=True)

    def _topic(self) -> bytes:
        return self.view.namespace.topic_of_log.get(self.log, b"")

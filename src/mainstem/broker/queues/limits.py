"""Limits that act at the head of a queue: time to live and length, with or without consumers.

A record expires at the lower of the queue's and its own time to live, when it has come to the head. Over the length
limits the oldest leave. What leaves goes to the dead-letter exchange, if there is one. Or nothing enters a full queue
any more: then its publishers ask first.

How many bytes are ready is counted as records enter and are handed out. A cursor knows positions, not sizes: what comes
back is looked at in the log, at once where a limit in bytes depends on it, else a slice with each tick. What is handed out
again before its slice came is never counted. After a start the unread backlog is counted only under such a limit.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from mainstem.broker.delivery.live import RecordRef
from mainstem.broker.queues.levels import stored_records
from mainstem.broker.queues.properties import expires_at_ms
from mainstem.broker.queues.queue_sink import Backlog
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.queues.levels import Level
    from mainstem.broker.queues.queue import Queue

NS_PER_MS = 1_000_000
COUNTED_AT_ONCE = 256


class HeadLimits:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        # Per level: the head that was looked at (next unread, first released) and when it expires.
        self._dues: dict[int, tuple[tuple[int, int | None], int | None]] = {}
        self._uncounted: dict[int, Level] = {}  # positions that came back and are not in `ready_bytes` yet
        self._promised = (0, 0, 0)  # since that tick so many records of so many bytes were let in

    # -- length

    def refuses(self, size: int) -> bool:
        """Whether a publish of `size` bytes would put the queue over its limits; if not, it is counted from now on."""
        ticker = self._queue.queues.ticker
        if self._promised[0] != ticker.ticks:
            self._promised = (ticker.ticks, 0, 0)
        if self._promised[1] and self._overflows(size):
            ticker.write_now()  # a consumer may take what was published since the last tick
            self._promised = (ticker.ticks, 0, 0)
        if self._overflows(size):
            return True
        tick, count, total = self._promised
        self._promised = (tick, count + 1, total + size)
        return False

    def _overflows(self, size: int) -> bool:
        queue, (_, count, total) = self._queue, self._promised
        length_max, bytes_max = queue.settings.length_max, queue.settings.bytes_max
        return (length_max is not None and queue.ready + queue.sink.entered_count + count >= length_max) or (
            bytes_max is not None and queue.ready_bytes + total + size > bytes_max
        )

    def count_bytes(self) -> None:
        """After a start: the journal keeps how many records are ready, not how large they are."""
        queue = self._queue
        if not queue.ready:
            return
        if queue.settings.bytes_max is not None:
            begin = min(level.cursor.next for level in queue.levels)
            queue.ready_bytes = sum(
                record.value_size
                for record in stored_records(queue, begin, queue.head_stamp)
                if record.stamp >= queue.level(queue.priority_of(record)).cursor.next
            )
        for level in queue.levels:
            self.came_back(level, level.cursor.released_positions())

    def follow(self, before: HeadLimits) -> None:
        """The queue had others until now."""
        uncounted, before._uncounted = before._uncounted, {}
        if self._queue.settings.bytes_max is not None:
            self.count_bytes()
        elif uncounted:
            self._uncounted = uncounted
            self._queue.queues.ticker.after_tick(self._count_some)

    def came_back(self, level: Level, positions: list[int]) -> None:
        """They are ready again."""
        if not positions:
            return
        if self._queue.settings.bytes_max is not None:
            self._queue.ready_bytes += _stored_bytes(level, positions)
            return
        if not self._uncounted:
            self._queue.queues.ticker.after_tick(self._count_some)
        self._uncounted.update(dict.fromkeys(positions, level))

    def _count_some(self) -> None:
        """A slice of what came back: a consumer may leave a hundred thousand behind at once."""
        if not self._uncounted or self._queue.deleted:
            return
        level = next(iter(self._uncounted.values()))
        first = islice(self._uncounted.items(), COUNTED_AT_ONCE)
        positions = [position for position, its_level in first if its_level is level]
        for position in positions:
            del self._uncounted[position]
        self._queue.ready_bytes += _stored_bytes(level, positions)
        if self._uncounted:
            self._queue.queues.ticker.after_tick(self._count_some)

    def left_again(self, position: int, size: int) -> None:
        """A record of that size, which had come back, was handed out or dropped."""
        if self._uncounted.pop(position, None) is None:
            self._queue.ready_bytes = max(0, self._queue.ready_bytes - size)

    def nothing_is_ready(self) -> None:
        self._queue.ready_bytes = 0
        self._uncounted = {}

    def _drop_released(self, level: Level, reason: str) -> None:
        """The first record that came back leaves undelivered."""
        positions = level.cursor.lease_released(1)
        for position in positions:
            self.left_again(position, 0 if position in self._uncounted else _stored_bytes(level, [position]))
        self._queue.dead_letter(level, positions, reason)

    def drop_first(self, level: Level, record: RecordRef, reason: str) -> None:
        """The first unread record of the backlog leaves undelivered."""
        position = record.stamp
        self._queue.ready_bytes = max(0, self._queue.ready_bytes - record.value_size)
        level.backlog.skip()
        if self._queue.settings.dead_letter_exchange is None:
            level.cursor.pass_over(position + 1, 1)
            self._queue.totals.dead += 1
            self._queue.queues.service.drops[reason] += 1
        else:
            level.cursor.lease_many([position])
            self._queue.dead_letter(level, [position], reason)

    def enforce(self) -> None:
        """Drop the oldest records over the limits, where publishers are not refused instead."""
        settings = self._queue.settings
        if settings.refuses or any(level.cursor.estimated for level in self._queue.levels):
            return  # a count that is too high would drop what has its place
        while (settings.length_max is not None and self._queue.ready > settings.length_max) or (
            settings.bytes_max is not None and self._queue.ready_bytes > settings.bytes_max and self._queue.ready
        ):
            level = next(level for level in reversed(self._queue.levels) if level.cursor.ready)
            if level.cursor.released:
                self._drop_released(level, "maxlen")
            elif len(level.backlog) or level.read_on():
                record = level.backlog.first()
                assert record is not None
                self.drop_first(level, record, "maxlen")
            else:
                return

    # -- time to live

    @property
    def expiring(self) -> bool:
        return self._queue.settings.message_ttl_ms is not None or self._queue.sink.expiring

    def expired(self, record: RecordRef) -> bool:
        due_ms = self._due_of(record)
        return due_ms is not None and due_ms <= self._queue.queues.now_ms()

    def _due_of(self, record: RecordRef) -> int | None:
        entered_ms = self._entered_ms(record)
        own = expires_at_ms(record.outline(), entered_ms) if self._queue.sink.expiring else None
        ttl = self._queue.settings.message_ttl_ms
        if ttl is None:
            return own
        return entered_ms + ttl if own is None else min(own, entered_ms + ttl)

    def _entered_ms(self, record: RecordRef) -> int:
        """Its stamp, unless stamps are ahead of the clock, as they are for some seconds after an unclean stop."""
        entered_ms = record.stamp // NS_PER_MS
        if entered_ms <= self._queue.queues.now_ms():
            return entered_ms
        return min(entered_ms, max(record.time_ms, self._queue.queues.service.started_ms))

    def expire_now(self) -> None:
        """Expired records at the head leave, with or without consumers."""
        if not self.expiring:
            return
        for level in self._queue.levels:
            while level.cursor.released and self._head_expired(level):
                self._drop_released(level, "expired")
            while not level.cursor.released and level.cursor.unread and self._head_expired(level):
                record = level.backlog.first()
                assert record is not None
                self.drop_first(level, record, "expired")

    def _head_expired(self, level: Level) -> bool:
        due_ms = self._level_due(level)
        return due_ms is not None and due_ms <= self._queue.queues.now_ms()

    def _level_due(self, level: Level) -> int | None:
        """When the first ready record of a level expires; None for never. Asked once per head, then remembered."""
        cursor = level.cursor
        if not cursor.ready:
            return None
        first = cursor.released_first()
        seen = (cursor.next, first)
        known = self._dues.get(level.priority)
        if known is not None and known[0] == seen:
            due_ms = known[1]
            if due_ms is None or due_ms > self._queue.queues.now_ms() or first is not None or len(level.backlog):
                return due_ms
        if first is not None:
            records = Backlog(self._queue.sink)
            try:
                level.plan_positions(records, [first])
            except NotLocal as missing:
                level.bring(missing)
                return None
            record = records.first()
        else:
            record = level.backlog.first() if len(level.backlog) or level.read_on() else None
            if record is None and level.reading:
                return None  # known when it is here
        due_ms = self._due_of(record) if record is not None else None
        self._dues[level.priority] = (seen, due_ms)
        return due_ms

    def next_due_ms(self) -> int | None:
        """When the first record at a head expires."""
        if not self.expiring:
            return None
        dues = [self._level_due(level) for level in self._queue.levels]
        return min((due for due in dues if due is not None), default=None)


def _stored_bytes(level: Level, positions: list[int]) -> int:
    records = Backlog(level.queue.sink)
    try:
        level.plan_positions(records, sorted(positions))
    except NotLocal as missing:  # what came back and lies elsewhere is not counted against the limit
        level.bring(missing)
        return 0
    size = 0
    while (record := records.first()) is not None:
        size += record.value_size
        records.skip()
    return size

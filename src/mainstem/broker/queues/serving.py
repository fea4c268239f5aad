"""Handing out what is ready: released records first, at their old place, then unread ones as the log is read on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.broker.queues.key_serving import serve_by_key
from mainstem.broker.queues.queue_sink import Backlog
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.queues.levels import Level
    from mainstem.broker.queues.queue import Queue

SERVE_RECORDS_MAX = 10_000  # of one turn; the rest in the next
RELEASED_AT_ONCE = 64


class Serving:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def serve(self, *, on_loop: bool) -> None:
        self._queue.apply_events()
        now_ms = self._queue.queues.now_ms()
        for level in self._queue.levels:
            self._queue.limits.came_back(level, level.cursor.wake(now_ms))
        served = 0
        while served < SERVE_RECORDS_MAX:
            self._queue.sink.room = min(level.cursor.room for level in self._queue.levels)
            level = next((level for level in self._queue.levels if level.cursor.ready), None)  # type: ignore[assignment]
            if level is None or not self._queue.sink.wanted:
                return
            if level.cursor.order is not None:
                handed = serve_by_key(self._queue, level)
            elif level.cursor.released:
                handed = self._serve_released(level) if not level.reading else 0
            else:
                handed = self._serve_unread(level, on_loop)
            if handed == 0:
                return
            served += max(handed, 1)
        self._queue.wake()

    def _serve_released(self, level: Level) -> int:
        """Hand out some released records; 0 if nobody took any."""
        cursor = level.cursor
        positions = cursor.lease_released(min(RELEASED_AT_ONCE, self._queue.sink.credit))
        records = Backlog(self._queue.sink)
        try:
            level.plan_positions(records, positions)
        except NotLocal as away:
            cursor.release(set(positions), 0, counted=False)
            level.bring(away)
            return 0
        handed = gone = 0
        left = set(positions)
        expiring = self._queue.limits.expiring
        while (record := records.first()) is not None:
            position, attempts = record.stamp, cursor.attempts(record.stamp)
            if expiring and self._queue.limits.expired(record):
                self._queue.limits.left_again(position, record.value_size)
                self._queue.dead_letter(level, [position], "expired")
                gone += 1
            elif self._queue.sink.hand(record, attempts > 0, attempts):
                handed += 1
                self._queue.limits.left_again(position, record.value_size)
                self._queue.totals.redelivered += attempts > 0
                if self._queue.sink.forget_events():
                    cursor.ack_many([position])
            else:
                break
            left.discard(position)
            records.skip()
        back = {p for p in left if len(records)}  # nobody had room
        cursor.release(back, 0, counted=False)
        missing = left - back
        cursor.ack_many(missing)  # retention or erasing took them
        self._queue.totals.delivered += handed
        return handed + gone + len(missing)

    def _serve_unread(self, level: Level, on_loop: bool) -> int:
        if not len(level.backlog) and not self._read(level, on_loop):
            return 0
        if not self._queue.limits.expiring:
            level.backlog.hand_all()
            self._queue.queues.service.note_read_ahead(level)
            return self._queue.apply_events(level)
        handed = 0
        while (record := level.backlog.first()) is not None:
            if self._queue.limits.expired(record):
                handed += self._queue.apply_events(level) + 1
                self._queue.limits.drop_first(level, record, "expired")
            elif self._queue.sink.hand(record, False, 0):
                level.backlog.skip()
            else:
                break
        return handed + self._queue.apply_events(level)

    def _read(self, level: Level, on_loop: bool) -> bool:
        """Fill the level's backlog; False when there is nothing, or when a thread was asked and will `wake` the queue."""
        if level.reading:
            return False
        reader = None if on_loop else level.begin_read()
        if reader is None:
            return level.read_on()

        def done(pieces: list[Any], complete: int) -> None:
            level.reading = False
            if not self._queue.deleted:
                level.take_read(pieces, complete)
                self._queue.wake()

        try:
            self._queue.queues.read_in_thread(reader, done)
            level.reading = True
        except NotLocal as missing:
            level.bring(missing)
        return False

"""How much of the past a new queue has to give out.

The topic index counts it at once, unless a condition decides: then every record must be looked at. Until that is done the
index's count, which is too high, stands for it: consumers are served meanwhile, limits of length wait. The log is read in
threads, a small piece at a time, and looked at on the loop, where the queue's bindings are known; how much too high the
count was is taken off in the end. The journal knows of a count that is not done (`estimated`): a start goes on with it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mainstem.broker.delivery.catch_up import CatchUp, Piece
from mainstem.broker.queues.queue_sink import Backlog
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.queues.levels import Level

logger = logging.getLogger("mainstem.broker")

PIECE_BYTES = 32 << 10  # some hundred records: about a millisecond


def count_history(level: Level, start: int) -> None:
    """A queue that begins in the past is declared: what lies there is unread."""
    queue = level.queue
    unread = level.count_history(start)
    if unread:
        level.cursor.enter(queue.created - 1, unread)
        if queue.condition is not None:
            level.cursor.estimate(True)
            resume_count(level)


def resume_count(level: Level) -> None:
    """Count what is unread, if that is only estimated."""
    if level.cursor.estimated and not level.queue.settings.priority_max:
        Count(level).go_on()


class Count:
    """One count on its way. It ends early when the level was read to its head, or purged: then it is known anyway."""

    def __init__(self, level: Level) -> None:
        self._level = level
        queue, cursor = level.queue, level.cursor
        self._end, self._estimate, self._found = cursor.head, cursor.unread, 0
        self._reader = CatchUp(queue.namespace, queue.filters, cursor.next, chunk_bytes=PIECE_BYTES)

    def go_on(self) -> None:
        queue = self._level.queue
        if queue.deleted or not self._level.cursor.estimated:
            return
        if self._reader.position >= min(self._end, queue.head_stamp):
            self._finish()
            return
        try:
            queue.queues.read_in_thread(self._reader, self._take)
        except NotLocal as missing:
            self._level.bring(missing)
            queue.watch(self.go_on)

    def _take(self, pieces: list[Piece], complete: int) -> None:
        level = self._level
        if level.queue.deleted:
            return
        records = Backlog(level.queue.sink)
        level.plan_pieces(records, pieces, self._reader.position, min(complete, self._end))
        self._found += len(records)
        self._reader.position = complete
        self.go_on()

    def _finish(self) -> None:
        level = self._level
        too_many = self._estimate - self._found
        level.cursor.recount(max(0, level.cursor.unread - too_many))
        level.cursor.estimate(False)
        level.queue.queues.journal_changes(level.queue)
        level.queue.wake()

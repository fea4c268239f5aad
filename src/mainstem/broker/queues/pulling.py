"""Copies of a queue's records: pulled by whoever holds them under a lock, or only looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mainstem.broker.delivery.live import RecordRef
from mainstem.broker.queues.queue_sink import Backlog, Taker
from mainstem.model.record import Record

if TYPE_CHECKING:
    from mainstem.broker.queues.levels import Level
    from mainstem.broker.queues.queue import Queue


@dataclass(frozen=True, slots=True)
class Taken:
    """A record that was pulled: settle it by its position."""

    position: int
    record: Record
    attempts: int
    log_id: int = 0  # where it lies, for those who tell offsets
    redelivered: bool = False  # it may have been delivered before, also where no attempt is known


class Collector(Taker):
    """Pulls copies; `until`: none of other logs, nor behind that stamp."""

    def __init__(
        self, queue: Queue, count: int, bytes_max: int, holder: object, until: tuple[int, int] | None = None
    ) -> None:
        super().__init__(credit=count)
        self.queue = queue
        self.holder = holder  # of keys: it may pull again while it holds some
        self.taken: list[Taken] = []
        self._bytes_left = bytes_max
        self._until = until

    def take(self, record: RecordRef, redelivered: bool, attempts: int) -> bool:
        log_id = record.log.id if record.log is not None else 0
        if self._bytes_left <= 0 or (
            self._until is not None and (log_id != self._until[0] or record.stamp > self._until[1])
        ):
            return False
        self._bytes_left -= record.value_size + 64
        self.taken.append(Taken(record.stamp, record.copy(), attempts, log_id, redelivered))
        return True


def first_ready(queue: Queue, count: int) -> list[Taken]:
    """The first ready records, left where they are."""
    found: list[Taken] = []
    for level in queue.levels:
        records = Backlog(queue.sink)
        level.plan_positions(records, level.cursor.released_positions()[: count - len(found)])
        _copy_all(records, found, level, count)
        if level.index is not None:
            level.plan_positions(records, level.first_positions(count - len(found)))
            _copy_all(records, found, level, count)
        elif len(found) < count and level.cursor.unread and (len(level.backlog) or level.read_on()):
            pieces, complete = level.reader_from(level.cursor.next).read(queue.head_stamp)
            level.plan_pieces(records, pieces, level.cursor.next, complete)
            _copy_all(records, found, level, count)
    return found[:count]


def first_dead(queue: Queue, count: int) -> list[tuple[Taken, str, int]]:
    """Dead letters that are kept here: the record, why and when."""
    found: list[tuple[Taken, str, int]] = []
    for level in queue.levels:
        records = Backlog(queue.sink)
        level.plan_positions(records, sorted(level.cursor.dead)[: count - len(found)])
        while (record := records.first()) is not None:
            dead = level.cursor.dead[record.stamp]
            found.append((Taken(record.stamp, record.copy(), dead.attempts), dead.reason, dead.time_ms))
            records.skip()
    return found


def _copy_all(records: Backlog, found: list[Taken], level: Level, count: int) -> None:
    while len(found) < count and (record := records.first()) is not None:
        found.append(Taken(record.stamp, record.copy(), level.cursor.attempts(record.stamp)))
        records.skip()
    records.clear()

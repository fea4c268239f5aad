"""The records of one priority in a queue: a cursor over them, and what was read ahead of it.

A queue without priorities has one level, and finds its records by reading the log on. With priorities each has its own
cursor, so that counts survive a restart, and an index on disk of where its unread records lie (`ready_index.py`).
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from mainstem.broker.delivery.catch_up import CatchUp, Piece
from mainstem.broker.delivery.live import RecordRef
from mainstem.broker.queues.queue_sink import Backlog
from mainstem.broker.queues.ready_index import ReadyIndex
from mainstem.codec.batch import FRAME_HEAD_SIZE, frame_heads
from mainstem.cursor.queue import QueueCursor
from mainstem.log.away import bring, large_by_thread
from mainstem.log.committed import taken_stamps
from mainstem.log.damaged import readable_offset
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.queues.queue import Queue
    from mainstem.log.log import Log

logger = logging.getLogger("mainstem.broker")

READ_BYTES = 256 << 10
POSITION_READ_BYTES = 16 << 10
INDEXED_AT_ONCE = 64  # records of a priority that are read ahead
HOT_NS = 60_000_000_000  # younger records are in the page cache: read on the loop; older ones in a thread
EMPTY = array("q")


class Level:
    def __init__(self, queue: Queue, priority: int, start: int) -> None:
        self.queue = queue
        self.priority = priority
        self.cursor = QueueCursor(
            start,
            deliveries_max=queue.settings.deliveries_max,
            journaled=queue.settings.durable,
            ordered=queue.settings.order_by_key,
        )
        self.backlog = Backlog(queue.sink)
        self.scanned = start  # the log was looked through up to here
        self.reading = False
        self._reader: CatchUp | None = None  # given up with what was read
        path = queue.queues.service.index_path(queue.id, priority)
        self.index = ReadyIndex(path) if queue.settings.priority_max else None

    # -- reading ahead

    def read_on(self) -> bool:
        """Read the next stretch into the backlog, on the loop. False when the log has been looked through to its head, or
        when what comes next lies elsewhere: the queue is woken when it is here."""
        if self.reading:
            return False
        try:
            with large_by_thread():
                if self.index is not None:
                    return self._read_index(self.index)
                while not len(self.backlog) and self._begin() < self.queue.head_stamp:
                    pieces, complete = self._reader_on().read(self.queue.head_stamp)
                    self.take_read(pieces, complete)
        except NotLocal as missing:
            self.bring(missing)
        return len(self.backlog) > 0

    def bring(self, missing: NotLocal) -> None:
        """Have a thread fetch what lies elsewhere; then the queue goes on. One at a time."""
        if self.reading:
            return
        self.reading = True

        def again() -> None:
            self.reading = False
            if not self.queue.deleted:
                self.queue.wake()

        bring(missing, again)

    def begin_read(self) -> CatchUp | None:
        """A reader to be run in a thread, where the next records are old and may lie on the disk only."""
        cold = self.queue.head_stamp - self._begin() > HOT_NS
        return self._reader_on() if cold and self.index is None else None

    def take_read(self, pieces: list[Piece], complete: int) -> None:
        """Plan what a read brought."""
        self.plan_pieces(self.backlog, pieces, self._begin(), complete)
        self.scanned = max(self.scanned, complete)
        if complete >= self.cursor.head:
            self.cursor.estimate(False)
            if self.cursor.unread != len(self.backlog):
                # Retention or erasing took some of what was counted, or the count of a crashed run was behind.
                self.cursor.recount(len(self.backlog))

    def forget_read(self) -> None:
        """Give the memory back; what was planned is read again."""
        self.backlog.clear()
        self.scanned = self.cursor.next
        self._reader = None
        if self.index is not None:
            self.index.rewind(self.cursor.next)

    def caught_up(self) -> None:
        """Nothing is unread."""
        self.scanned = self.cursor.next
        self._reader = None

    @property
    def read_ahead_bytes(self) -> int:
        return self.backlog.bytes + (self._reader.held_bytes if self._reader is not None else 0)

    def _begin(self) -> int:
        return max(self.cursor.next, self.scanned)

    def _reader_on(self) -> CatchUp:
        """The reader that goes on where the last read ended: it need not look for the place again."""
        if self._reader is None:
            self._reader = self.reader_from(self._begin())
        self._reader.position = self._begin()
        return self._reader

    def reader_from(self, position: int) -> CatchUp:
        return CatchUp(self.queue.namespace, self.queue.filters, position, chunk_bytes=READ_BYTES)

    def plan_pieces(
        self, backlog: Backlog, pieces: list[Piece], begin: int, complete: int, *, every_priority: bool = False
    ) -> None:
        """Choose the queue's records out of what was read."""
        queue = self.queue
        wants = None if not queue.picky else queue.takes if every_priority else self._wants
        backlog.constant_from = queue.reaches.constant_from
        for piece in pieces:
            backlog.plan(
                piece.log,
                piece.data,
                piece.offsets,
                begin,
                complete,
                queue.namespace.topic_of,
                wants,
                cold_before=queue.head_stamp - HOT_NS,
                topic=piece.topic,
            )
        if len(pieces) > 1:
            backlog.sort()

    def count_history(self, start: int) -> int:
        """How many stored records the queue's filters mean, from a stamp on: counted in the index, not read. What lies in a
        lost object is left out where nobody knows its topics."""
        total = 0
        for log in dict(pair for f in self.queue.filters for pair in self.queue.namespace.logs_of(f)):
            try:
                first = readable_offset(log, start)
            except NotLocal as missing:  # a count of history: the part's beginning is near enough
                first = missing.offset
            if log.index is None:
                total += log.count(first, log.written)
                continue
            numbers = 0
            for topic_filter in self.queue.filters:
                numbers |= int.from_bytes(log.index.topics.bitmap(topic_filter), "little")
            bitmap = numbers.to_bytes((numbers.bit_length() + 7) // 8 or 1, "little")
            total += sum(log.index.count(bitmap, *one) for one in log.index.known(first, log.written))
        return total

    def _wants(self, record: RecordRef) -> bool:
        return self.queue.takes(record) and self.queue.priority_of(record) == self.priority

    # -- records at known positions

    def _read_index(self, index: ReadyIndex) -> bool:
        while not len(self.backlog) and (positions := index.take(INDEXED_AT_ONCE)):
            try:
                self.plan_positions(self.backlog, [p for p in positions if p >= self.cursor.next])
            except NotLocal:
                self.backlog.clear()
                index.rewind(max(self.cursor.next, positions[0]))
                raise
            self.scanned = max(self.scanned, positions[-1] + 1)
        if not len(self.backlog) and self.cursor.unread:  # retention or erasing took what was counted
            self.cursor.recount(0)
        return len(self.backlog) > 0

    def first_positions(self, count: int) -> list[int]:
        """The first unread positions of a priority."""
        return self.index.peek(count, self.cursor.next) if self.index is not None else []

    def enter(self, position: int) -> None:
        """A record of this priority entered; the index knows where it lies."""
        if self.index is not None:
            self.index.add(position)
        self.cursor.enter(position)

    def purge(self, head: int) -> int:
        """Everything ready is settled; how many there were."""
        count = self.cursor.purge(head)
        self.cursor.estimate(False)
        if self.index is not None:
            self.index.clear()
        self.forget_read()
        return count

    def plan_positions(self, backlog: Backlog, positions: Sequence[int]) -> None:
        """Plan the records that lie at these (ascending) positions; what is no longer there is left out."""
        logs = dict(pair for f in self.queue.filters for pair in self.queue.namespace.logs_of(f))
        at = 0
        while at < len(positions):
            found = _frames_at(list(logs), positions[at])
            if found is None:
                at += 1
                continue
            log, data, stretches = found
            wanted: set[int] = set()
            while at < len(positions) and any(first <= positions[at] < end for first, end in stretches):
                wanted.add(positions[at])
                at += 1
            backlog.plan(
                log,
                data,
                EMPTY,
                min(wanted),
                max(wanted) + 1,
                self.queue.namespace.topic_of,
                _among(wanted),
                topic=logs[log] or b"",
                exact=True,
            )


def stored_records(queue: Queue, begin: int, end: int) -> Iterator[RecordRef]:
    """All records of a queue in a stretch of stamps, of every priority; each is valid until the next."""
    level = queue.level(0)
    while begin < end:
        pieces, complete = level.reader_from(begin).read(end)
        records = Backlog(queue.sink)
        level.plan_pieces(records, pieces, begin, complete, every_priority=True)
        while (record := records.first()) is not None:
            yield record
            records.skip()
        begin = complete


def load_indexes(queue: Queue) -> None:
    """After a start: what the files say of where the unread records lie, or else what the log says."""
    cursors = [level.cursor for level in queue.levels]
    loaded = [level.index is not None and level.index.load(*level.cursor.unread_span) for level in queue.levels]
    if all(loaded):
        return
    for level in queue.levels:
        assert level.index is not None
        level.index.clear()
    found = dict.fromkeys(cursors, 0)
    for record in stored_records(queue, min(c.next for c in cursors), max(c.head for c in cursors)):
        level = queue.level(queue.priority_of(record))
        if level.index is not None and level.cursor.next <= record.stamp < level.cursor.head:
            level.index.add(record.stamp)
            found[level.cursor] += 1
    for cursor, count in found.items():
        cursor.recount(count)
    logger.info("queue %s: indexed %d ready records again", queue.name, sum(found.values()))


def _among(positions: set[int]) -> Callable[[RecordRef], bool]:
    return lambda record: record.stamp in positions


def _frames_at(logs: list[Log], stamp: int) -> tuple[Log, memoryview, list[tuple[int, int]]] | None:
    """The log, some of its frames from the one that holds `stamp` on, and the stretches of stamps they cover."""
    for log in logs:
        if log.last_stamp < stamp:
            continue
        piece = log.read_now(log.offset_of_stamp(stamp), POSITION_READ_BYTES)
        if piece is None:
            continue
        stretches = _stretches(log, piece.data)
        if stretches[0][0] <= stamp < stretches[0][1]:
            return log, piece.data, stretches
    return None


def _stretches(log: Log, data: memoryview) -> list[tuple[int, int]]:
    """The stamps that each frame covers: its own, and those that a transaction's marker took for its records."""
    found, at = [], 0
    for head in frame_heads(data, log.id):
        found.append((head.stamp, head.stamp + head.count + taken_stamps(data[at + FRAME_HEAD_SIZE : at + head.size])))
        at += head.size
    return found

"""One queue: ways in (reaches), a cursor per priority, consumers of any protocol. One copy of each record: the log's.

    live push ──▶ QueueSink ──▶ consumer with credit                     the usual case: no read, no state but the lease
                   │
                   └─ counts it;  later  log ──▶ Backlog ──▶ consumer with credit

Consumers (`Taker`) attach; the queue takes turns among those with credit, higher priorities first. Whoever pulls
(`acquire`) holds records under a lock that expires. How a lease ends is said by `settle`: acked, released (it comes back at
its old place) or rejected. A record whose deliveries are used up, or that is rejected, expires or is over the length limit,
goes to the dead-letter exchange as a new record, and leaves here once that is durable; without such an exchange rejected
records stay in the queue's state, where they can be seen and redriven.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING
from weakref import WeakSet

from mainstem.broker.delivery.live import RecordRef
from mainstem.broker.queues.contents import QueueContents
from mainstem.broker.queues.counting import count_history, resume_count
from mainstem.broker.queues.dead_letters import LettersOnTheWay
from mainstem.broker.queues.levels import Level, load_indexes, stored_records
from mainstem.broker.queues.limits import HeadLimits
from mainstem.broker.queues.pulling import Collector, Taken, first_dead, first_ready
from mainstem.broker.queues.queue_sink import QueueSink, Taker, may_expire
from mainstem.broker.queues.serving import Serving
from mainstem.broker.queues.settings import QueueSettings
from mainstem.broker.queues.totals import Totals
from mainstem.log.gather import Ticket
from mainstem.model.errors import CorruptFrame

if TYPE_CHECKING:
    from mainstem.broker.queues.registry import Queues
    from mainstem.broker.queues.stream_numbers import StreamNumbers
    from mainstem.log.log import Log
    from mainstem.metadata.store import Written

__all__ = ["Outcome", "Queue", "Taken", "Totals"]

logger = logging.getLogger("mainstem.broker")

DEAD_LETTERS_MAX = 100_000  # kept in the state of a queue without a dead-letter exchange; the oldest go first


class Outcome(Enum):
    ACK = "ack"
    RELEASE = "release"
    REJECT = "reject"
    UNTOUCHED = "untouched"  # it was never delivered: no attempt


class Queue(QueueContents):
    def __init__(
        self, queues: Queues, queue_id: int, name: str, settings: QueueSettings, created: int, condition: str = ""
    ) -> None:
        super().__init__(queues, queue_id, name, settings, created, condition)
        self.sink = QueueSink(self.namespace, queue_id, self)
        self.saving: Written | None = None  # while its declaration is not committed
        self.owner: object | None = None  # of an exclusive queue: its connection
        self.exclusive_taker: Taker | None = None
        self.takers: list[Taker] = []
        self.had_takers = False
        self.deleted = False
        self.totals = Totals()
        self.ready_bytes = 0
        self.used_ms, self.letters = queues.now_ms(), LettersOnTheWay()
        self.numbers: StreamNumbers | None = None  # of a declared stream
        self._holders: dict[int, object] = {}  # pulled records: who may settle them
        self._pullers: WeakSet[object] | None = None
        self._watchers: list[Callable[[], None]] = []
        self.limits = HeadLimits(self)
        self.serving = Serving(self)
        self.sink.inspect = self.picky
        self._read_undecided()
        self._first = self.recovered_level(0, created)
        self.timeless, self._limited = self.settings.timeless, self.settings.limited

    # -- priorities

    def level(self, priority: int) -> Level:
        found = self._levels.get(priority)
        if found is None:
            start = max((level.cursor.head for level in self._levels.values()), default=self.created)
            found = self.recovered_level(priority, start)
            found.cursor.note_start()
        return found

    def recovered_level(self, priority: int, start: int = 0) -> Level:
        """A level that the journal knows: it tells where it begins."""
        found = self._levels.get(priority)
        if found is None:
            found = self._levels[priority] = Level(self, priority, start)
        return found

    # -- its life

    def begin(self, start: int, *, count: bool) -> None:
        """Nothing is read yet; `count`: what its reaches say of the past is unread (else the journal will tell)."""
        level = self.level(0)
        level.cursor.apply_start(start)
        level.scanned = start
        if count and start < self.created:
            if self.settings.priority_max:
                self._count_news(start)
            else:
                count_history(level, start)
        self.sink.newest = max(self.created - 1, level.cursor.head - 1)
        self._stand()

    def recover(self) -> None:
        """After the journal was applied: end all leases, count what was written after the last checkpoint."""
        now_ms = self.queues.now_ms()
        sent = self.queues.service.dead_letter_marks.written_of(self)
        for level in self.levels:
            level.scanned = level.cursor.next
            level.cursor.ack_many(sent)
            if not self.queues.service.broker.stamps.clean:
                level.cursor.doubt(self.head_stamp)
            self.dead_letter(level, level.cursor.recover(now_ms).dead, "delivery_limit")
        if self.settings.priority_max:
            load_indexes(self)
        self._count_news(max(level.cursor.head for level in self._levels.values()))
        self.limits.count_bytes()
        self.sink.newest = self.head_stamp - 1
        self.sink.doubtful = max(level.cursor.doubtful for level in self._levels.values())
        self.used_ms = now_ms
        self.queues.journal_changes(self)  # before the mark of its letters goes, or a second crash sends them again
        resume_count(self._first)
        self._stand()

    def _count_news(self, begin: int) -> None:
        try:
            for record in stored_records(self, begin, self.head_stamp):
                begin = record.stamp + 1
                self.level(self.priority_of(record)).enter(record.stamp)
                self.sink.expiring = self.sink.expiring or may_expire(record)
        except CorruptFrame as error:  # an object is damaged or missing: the index counts the rest
            logger.error("queue %r: what came last is counted and not looked at: %s", self.name, error)
            unread = self.level(0).count_history(begin)
            if unread and not self.settings.priority_max:
                self.level(0).cursor.enter(self.head_stamp - 1, unread)

    def set_limits(self, settings: QueueSettings) -> None:
        """Other ones from now on; its kind stays."""
        self.apply_events()
        before = self.limits
        self.settings, self.limits = settings, HeadLimits(self)
        self.limits.follow(before)
        self.timeless, self._limited = settings.timeless, settings.limited
        self._read_undecided()

    def _read_undecided(self) -> None:
        self.sink.undecided_from, self.sink.undecided_to = self.settings.undecided_from, self.settings.undecided_to

    def close(self) -> None:
        """Deleted: nobody enters or takes any more."""
        self.letters.write_waiting()
        self.deleted = True
        for topic_filter in self.filters:
            self.namespace.unsubscribe(topic_filter, self.sink)
        self.sink.set_takers([])
        takers, self.takers = self.takers, []
        for taker in takers:
            taker.on_queue_deleted()
        for level in self._levels.values():
            level.backlog.clear()
            if level.index is not None:
                level.index.remove()

    # -- what the sink asks

    def on_dirty(self) -> None:
        self.queues.ticker.after_tick(self._after_tick)

    def wake(self) -> None:
        """Credit came back, or something became ready."""
        if not self.sink.dirty and not self.deleted:
            self.sink.dirty = True
            self.on_dirty()

    def inspect(self, record: RecordRef) -> bool:
        """A record is about to enter a picky queue. False: it does not go on through the sink."""
        if not self.holds(record):
            return False
        if not self.settings.priority_max:
            return True
        level = self.level(self.priority_of(record))
        if record.stamp < level.cursor.head:
            self.admit(record)
            return False
        self.totals.entered += 1
        self.ready_bytes += record.value_size
        level.enter(record.stamp)
        self.sink.expiring = self.sink.expiring or may_expire(record)
        self.wake()
        return False

    def admit(self, record: RecordRef) -> None:
        """A committed transaction's record, older than what entered already."""
        self.level(self.priority_of(record)).cursor.admit(record.stamp)
        self.totals.entered += 1
        if self.numbers is not None:
            self.numbers.advance(1, self._first.cursor.head)
        self.ready_bytes += record.value_size
        self.wake()

    def on_undecodable(self, log: Log, offset: int, error: Exception) -> None:
        self.queues.service.note_undecodable(log, offset, error)

    # -- the turn

    def _after_tick(self) -> None:
        sink = self.sink
        sink.dirty = False
        if self.deleted:
            return
        self.apply_events()
        if not self.timeless or sink.expiring:
            self.limits.expire_now()
        if self._limited:
            self.limits.enforce()
        if (self._first.cursor.ready if self.timeless else self.ready) and sink.wanted:
            self.serve()
        self._stand()
        if self.settings.durable:
            self.queues.note_pending(self)
        if self._watchers and self.ready:
            watchers, self._watchers = self._watchers, []
            for watcher in watchers:
                watcher()

    def _stand(self) -> None:
        """Whether the next record may go straight to a consumer; when to look again."""
        sink = self.sink
        if self.timeless and not sink.expiring:  # one level, no clock but that of its leases: nothing to add up
            if not sink.stand(self._first.cursor):
                return
        else:
            sink.direct = not self.settings.priority_max and not self.settings.order_by_key and not self.ready
            sink.room = min(level.cursor.room for level in self._levels.values())
        self.queues.schedule(self)

    def apply_events(self, level: Level | None = None) -> int:
        """Tell the cursor what the sink did; how many records were handed out."""
        if not self.sink.busy:
            return 0
        level = level or self._first
        cursor = level.cursor
        unread = cursor.unread
        handed = self.sink.tell(cursor)
        if self.numbers is not None:
            self.numbers.advance(cursor.unread - unread + handed, cursor.head)
        if handed:
            if not cursor.unread and not len(level.backlog):
                level.caught_up()
            if level.index is not None:
                level.index.settle(cursor.next)
        return handed

    def serve(self, *, on_loop: bool = False) -> None:
        """Hand out what is ready to whoever has credit; old records are read in a thread unless `on_loop`."""
        self.serving.serve(on_loop=on_loop)

    # -- consumers

    def attach(self, taker: Taker) -> None:
        taker.queue = self
        self.takers.append(taker)
        self.had_takers = True
        self._set_takers()
        self.used()
        self.wake()

    def detach(self, taker: Taker) -> None:
        """What it holds stays with whoever settles for it."""
        if taker not in self.takers:
            return
        self.apply_events()
        self.takers.remove(taker)
        if self.exclusive_taker is taker:
            self.exclusive_taker = None
        self._set_takers()
        self.used()
        if not self.takers:
            for level in self._levels.values():
                level.forget_read()
            if self.settings.auto_delete:
                self.queues.delete(self)
        self.wake()

    def _set_takers(self) -> None:
        active = self.takers[:1] if self.settings.single_active else self.takers
        self.sink.set_takers(active)

    @property
    def active_takers(self) -> list[Taker]:
        return self.takers[:1] if self.settings.single_active else self.takers

    def used(self) -> None:
        self.used_ms = self.queues.now_ms()
        self.queues.schedule(self)

    def pull(self, taker: Taker) -> None:
        """Serve one taker now, on the loop (basic.get)."""
        self.used()
        sink = self.sink
        self.apply_events()
        self.limits.expire_now()
        before = sink.groups, sink.turns
        sink.groups, sink.turns = [[taker]], [0]
        try:
            self.serve(on_loop=True)
        finally:
            sink.groups, sink.turns = before
        self._stand()

    def acquire(
        self,
        holder: object,
        count: int,
        *,
        lock_ms: int = 0,
        bytes_max: int = 1 << 20,
        until: tuple[int, int] | None = None,
    ) -> list[Taken]:
        """Pull up to `count` records under a lock; only `holder` may settle them, and only until the lock expires.

        `until`, the id of a log and a stamp: what lies in others, or behind, stays.
        """
        taker = Collector(self, count, bytes_max, holder, until)
        self.pull(taker)
        deadline_ms = self.queues.now_ms() + (lock_ms or self.settings.lock_ms)
        for taken in taker.taken:
            self._holders[taken.position] = holder
        for level in self._levels.values():
            level.cursor.extend([taken.position for taken in taker.taken], deadline_ms)
        self.totals.pulled += len(taker.taken)
        self.queues.schedule(self)
        return taker.taken

    def note_puller(self, holder: object) -> None:
        """A consumer that pulls; it is one of the queue's as long as it exists."""
        if self._pullers is None:
            self._pullers = WeakSet()
        self._pullers.add(holder)

    @property
    def pullers(self) -> list[object]:
        return list(self._pullers) if self._pullers is not None else []

    @property
    def pulled_by(self) -> Counter[object]:
        """How many pulled records each holds."""
        return Counter(self._holders.values())

    def held_by(self, holder: object, positions: Iterable[int]) -> list[int]:
        """Those of the positions that `holder` still holds."""
        return [position for position in positions if self._holders.get(position) is holder]

    def renew(self, positions: Sequence[int], *, lock_ms: int = 0) -> int:
        """Hold them longer; how many were held."""
        deadline_ms = self.queues.now_ms() + (lock_ms or self.settings.lock_ms)
        return sum(level.cursor.extend(positions, deadline_ms) for level in self._levels.values())

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back once when something is ready."""
        if self.ready:
            callback()
        else:
            self._watchers.append(callback)

    def unwatch(self, callback: Callable[[], None]) -> None:
        if callback in self._watchers:
            self._watchers.remove(callback)

    # -- how leases end

    def flush_acked(self) -> None:
        """Apply the acks that the sink collected."""
        sink = self.sink
        if len(self._levels) > 1 or self._holders:
            self.settle(sink.take_acked(), Outcome.ACK)
            return
        self.apply_events()
        cursor = self._first.cursor
        self.totals.acked += sink.settle_acked(cursor)
        if cursor.ready and sink.wanted:
            self.wake()
        else:
            self._stand()
        if self.settings.durable:
            self.queues.journal_changes(self)

    def settle(self, positions: Sequence[int], outcome: Outcome, *, delay_ms: int = 0) -> Ticket | None:
        """End leases. The ticket (None for a transient queue) is released when that is durable."""
        self.apply_events()
        for position in positions if self._holders else ():
            self._holders.pop(position, None)
        for level in self._levels.values():
            mine = positions
            if len(self._levels) > 1:
                mine = [position for position in positions if level.cursor.is_leased(position)]
            if mine:
                self._settle(level, mine, outcome, delay_ms)
        if self.ready and (self.sink.wanted or (self.settings.limited and outcome is Outcome.RELEASE)):
            self.wake()
        else:
            self._stand()
        return self.queues.journal_changes(self)

    def _settle(self, level: Level, positions: Sequence[int], outcome: Outcome, delay_ms: int) -> None:
        cursor = level.cursor
        if outcome is Outcome.ACK:
            self.totals.acked += len(cursor.ack_many(positions))
        elif outcome is not Outcome.REJECT:
            counted = outcome is Outcome.RELEASE
            returned = cursor.release(positions, self.queues.now_ms(), delay_ms=delay_ms, counted=counted)
            self.limits.came_back(level, [] if delay_ms > 0 else returned.released)
            self.dead_letter(level, returned.dead, "delivery_limit")
        else:
            self.dead_letter(level, [p for p in positions if cursor.is_leased(p)], "rejected")

    def dead_letter(self, level: Level, positions: list[int], reason: str) -> None:
        """Leases that nobody shall get again."""
        if not positions:
            return
        self.totals.dead += len(positions)
        cursor, now_ms = level.cursor, self.queues.now_ms()
        if self.settings.dead_letter_exchange is not None:
            self.queues.dead_letters.send(self, level, positions, reason)
        elif reason in ("rejected", "delivery_limit") and self.settings.durable:
            cursor.bury(positions, reason, now_ms)
            if len(cursor.dead) > DEAD_LETTERS_MAX:
                cursor.drop_dead(sorted(cursor.dead)[: len(cursor.dead) - DEAD_LETTERS_MAX])
        else:
            self.queues.service.drops[reason] += len(positions)
            cursor.ack_many(positions)

    def dead_lettered(self, level: Level, positions: list[int]) -> None:
        """Their dead letters are durable (or have nowhere to go): they leave."""
        level.cursor.ack_many(positions)
        self.queues.journal_changes(self)

    # -- time

    def next_due_ms(self) -> int | None:
        """When `on_time` has something to do."""
        dues = [level.cursor.next_event_ms() for level in self._levels.values()]
        dues.append(self.limits.next_due_ms())
        if self.settings.expires_ms is not None and not self.takers:
            dues.append(self.used_ms + self.settings.expires_ms)
        return min((due for due in dues if due is not None), default=None)

    def on_time(self, now_ms: int) -> None:
        """A deadline has come: an expired lock, a delayed release, a time to live, an unused queue."""
        settings = self.settings
        if settings.expires_ms is not None and not self.takers and self.used_ms + settings.expires_ms <= now_ms:
            self.queues.delete(self)
            return
        for level in self.levels:
            returned = level.cursor.expire(now_ms)
            self.limits.came_back(level, returned.released)
            for position in (*returned.released, *returned.dead):
                self._holders.pop(position, None)
            self.dead_letter(level, returned.dead, "delivery_limit")
            self.limits.came_back(level, level.cursor.wake(now_ms))
        self.limits.expire_now()
        if not self.takers:
            for level in self._levels.values():
                level.forget_read()
        self.queues.journal_changes(self)
        self.wake()

    # -- looking and purging

    def purge(self) -> int:
        """Everything ready is settled; leased records stay. How many there were."""
        self.apply_events()
        count = 0
        for level in self._levels.values():
            count += level.purge(self.head_stamp)
        self.limits.nothing_is_ready()
        self._stand()
        self.queues.journal_changes(self)
        return count

    def browse(self, count: int) -> list[Taken]:
        """The first ready records, left where they are."""
        return first_ready(self, count)

    def browse_dead(self, count: int = 100) -> list[tuple[Taken, str, int]]:
        """Dead letters that are kept here: the record, why and when."""
        return first_dead(self, count)

    def redrive(self, positions: Sequence[int] | None = None) -> int:
        """Dead letters kept here become ready again, their attempts forgotten."""
        count = 0
        for level in self._levels.values():
            back = level.cursor.redrive(positions)
            self.limits.came_back(level, back)
            count += len(back)
        self.queues.journal_changes(self)
        self.wake()
        return count

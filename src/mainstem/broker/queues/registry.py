"""All queues: declaring, finding and deleting them, their journal, their clock.

Declarations are metadata (a durable queue's `Written` is what declare-ok waits for); what a cursor did is journaled in the
default stem, in the same write as the data it speaks of:

    journal kind "queue": key = u32 queue id, u8 priority; value = a change of the cursor (cursor/queue_journal.py)

Acks are journaled as they come; what merely entered or was leased rides along with the next ack, or once a second, so that
a start counts at most about a second of records again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.broker.delivery.catch_up import CatchUp, Piece, threads_for
from mainstem.broker.queues.bindings import NOW, READING, Reach
from mainstem.broker.queues.dead_letter_marks import DeadLetterMarks
from mainstem.broker.queues.dead_letters import DeadLetters
from mainstem.broker.queues.exchange_names import DEFAULT, topic_of
from mainstem.broker.queues.exchanges import Exchanges
from mainstem.broker.queues.policies import QueuePolicies
from mainstem.broker.queues.queue import Queue
from mainstem.broker.queues.settings import Kind, QueueSettings
from mainstem.broker.queues.stream_numbers import JOURNAL_KIND as STREAM_KIND
from mainstem.broker.queues.stream_numbers import StreamJournal, StreamNumbers
from mainstem.broker.state.journal import DEFAULT_NAMESPACE, Entries
from mainstem.log.gather import Ticket
from mainstem.log.log import Log
from mainstem.log.retention import NO_STAMP, Holds
from mainstem.metadata.rows import Item, ItemKind, Sequence
from mainstem.metadata.store import Written
from mainstem.model.errors import AlreadyExists, NotFound, Overloaded

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.broker.queues.levels import Level

logger = logging.getLogger("mainstem.broker")

QUEUES_MAX = 1_000_000
JOURNAL_KIND = "queue"
READ_AHEAD_BYTES_MAX = 64 << 20  # of all queues together; beyond it the oldest read is forgotten and read again
CHECKPOINT_S = 1.0
UNDECODABLE_MAX = 1_000  # said so once each
NS_PER_MS = 1_000_000


class QueueService:
    """What the queues of all namespaces share: journal, timer, reading threads, and the acks of this turn."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.started_ms = self.now_ms()
        self.by_id: dict[int, Queue] = {}
        self.drops: Counter[str] = Counter()  # by reason: left undelivered, and no dead-letter exchange took them
        self.undecodable = 0  # batches left out
        self._undecodable: set[tuple[int, int]] = set()  # which of them were logged
        self._namespaces: dict[str, Queues] = {}
        self._touched: list[Queue] = []
        self._pending: set[Queue] = set()  # entered or leased, not yet journaled
        self._read_ahead: dict[Level, int] = {}  # bytes, the one served longest ago first
        self._read_ahead_bytes = 0
        self._timers: list[tuple[int, int]] = []  # heap of (due ms, queue id)
        self._scheduled: dict[int, int] = {}  # queue id → its earliest due
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0
        self._checkpoint: asyncio.TimerHandle | None = None
        broker.journal.register(JOURNAL_KIND, self._apply, self._dump, self.namespace_of, entries=Entries.CHANGES)
        self.stream_journal = StreamJournal(self.by_id)
        broker.journal.register(
            STREAM_KIND,
            self.stream_journal.apply,
            self.stream_journal.dump,
            self.namespace_of,
            entries=Entries.CHANGES,
        )
        self.dead_letter_marks = DeadLetterMarks(broker)
        broker.maintenance.holders["queues"] = self.holds

    def namespace_of(self, key: bytes) -> str:
        """Whose state a key of the journal is that begins with a queue's id."""
        queue = self.by_id.get(int.from_bytes(key[:4], "big"))
        return queue.namespace.name if queue is not None else DEFAULT_NAMESPACE

    def of(self, namespace: Namespace) -> Queues:
        found = self._namespaces.get(namespace.name)
        if found is None or found.namespace is not namespace:
            found = self._namespaces[namespace.name] = Queues(self, namespace)
        return found

    def used(self) -> list[Queues]:
        """Of the namespaces where anyone ever asked for them."""
        return list(self._namespaces.values())

    def forget_namespace(self, name: str) -> Iterator[None]:
        """It is removed: so are its queues. What the journal tells of them means nobody from then on."""
        found = self._namespaces.pop(name, None)
        for queue in found or ():
            queue.queues.delete(queue)
            yield

    def now_ms(self) -> int:
        return self.broker.clock.now_ns() // NS_PER_MS

    def stamp_now(self) -> int:
        """What was published before has a smaller one, what comes a greater one."""
        self.broker.ticker.write_now()
        return self.broker.stamps.take(1)

    # -- opening: declarations, then the journal, then what happened after the last checkpoint

    def load(self, items: list[Item]) -> None:
        """Before the journal is recovered."""
        for item in items:
            if item.kind == ItemKind.QUEUE_POLICY and item.namespace in self.broker.namespaces:
                self.of(self.broker.namespace(item.namespace)).policies.load(item)
        for item in items:
            if item.kind == ItemKind.QUEUE and item.namespace in self.broker.namespaces:
                self.of(self.broker.namespace(item.namespace)).load(item)
        routed: dict[str, list[Item]] = {}
        for item in items:
            if item.kind in (ItemKind.EXCHANGE, ItemKind.BINDING) and item.namespace in self.broker.namespaces:
                routed.setdefault(item.namespace, []).append(item)
        for name, mine in routed.items():
            self.of(self.broker.namespace(name)).exchanges.load(mine)

    def start(self) -> None:
        """After the journal is recovered: nobody holds a lease, and the newest records are counted."""
        self._remove_strange_indexes()
        for queue in list(self.by_id.values()):
            queue.recover()
            if queue.numbers is not None:
                queue.numbers.recover()
        self._mark_in_use()
        self._checkpoint = asyncio.get_running_loop().call_later(CHECKPOINT_S, self._on_checkpoint)

    def _mark_in_use(self) -> None:
        """From now on a kill leaves in doubt what was delivered. Where no queue has anything the first record says so.

        In a cluster it might say so too late: declarations are committed apart from the log, and a queue that is declared
        over old records delivers them.
        """
        if self.broker.options.replicated or any(queue.holds_any for queue in self.by_id.values()):
            self.broker.stamps.extend()

    def close(self) -> None:
        for handle in (self._timer, self._checkpoint):
            if handle is not None:
                handle.cancel()
        self.flush_settled()
        for queue in list(self.by_id.values()):
            queue.letters.write_waiting()
            queue.apply_events()
            self.journal_changes(queue)
            for level in queue.levels:
                if level.index is not None:
                    level.index.close()

    def index_path(self, queue_id: int, priority: int) -> Path:
        return self.broker.options.data / "queues" / f"{queue_id:08x}-{priority}.ready"

    def _remove_strange_indexes(self) -> None:
        """Of queues that did not outlive the last run."""
        for path in (self.broker.options.data / "queues").glob("*"):
            queue_id = path.name.partition("-")[0]
            if path.suffix != ".ready" or not queue_id.isalnum() or int(queue_id, 16) not in self.by_id:
                path.unlink(missing_ok=True)

    def holds(self, log: Log) -> Holds:
        """What retention must keep of a log: everything from the oldest unsettled record on of each queue that reads it."""
        stamps = [
            stamp
            for queue in self.by_id.values()
            if (stamp := queue.held_stamp()) is not None and queue.namespace.may_hold(log, queue.filters)
        ]
        return Holds(min(stamps, default=NO_STAMP), [], NO_STAMP)

    # -- journal

    def journal_changes(self, queue: Queue) -> Ticket | None:
        """Write what changed; the ticket of the last entry."""
        if not queue.settings.durable:
            return None
        self._pending.discard(queue)
        self.stream_journal.put(queue, self.broker.journal.put)
        ticket = None
        for level in queue.levels:
            if level.index is not None:
                level.index.write()
            change = level.cursor.changes()
            if change is not None:
                ticket = self.broker.journal.put(JOURNAL_KIND, _key(queue, level), change)
        return ticket

    def note_pending(self, queue: Queue) -> None:
        if queue.settings.durable:
            self._pending.add(queue)

    def _on_checkpoint(self) -> None:
        pending, self._pending = self._pending, set()
        for queue in pending:
            if not queue.deleted:
                self.journal_changes(queue)
        self.dead_letter_marks.move(self.by_id)
        self._checkpoint = asyncio.get_running_loop().call_later(CHECKPOINT_S, self._on_checkpoint)

    def _apply(self, key: bytes, value: bytes | None) -> None:
        queue = self.by_id.get(int.from_bytes(key[:4], "big"))
        if queue is not None and value is not None:
            queue.recovered_level(key[4]).cursor.apply(value)

    def _dump(self) -> Iterator[tuple[bytes, bytes]]:
        for queue in list(self.by_id.values()):
            if queue.settings.durable and not queue.deleted:
                for level in list(queue.levels):
                    yield _key(queue, level), level.cursor.snapshot()

    # -- acks of this turn

    def touch(self, queue: Queue) -> None:
        """Its sink has acks; `flush_settled` applies them when the read they came with is done."""
        self._touched.append(queue)

    def settled_ticket(self) -> Ticket | None:
        """Released once everything settled so far is durable; None if it is."""
        self.flush_settled()
        return self.broker.journal.unsynced()

    def flush_settled(self) -> None:
        if self._touched:
            touched, self._touched = self._touched, []
            for queue in touched:
                queue.flush_acked()

    # -- time

    def schedule(self, queue: Queue) -> None:
        due_ms = queue.next_due_ms()
        if due_ms is None:
            self._scheduled.pop(queue.id, None)
            return
        if self._scheduled.get(queue.id) == due_ms:
            return
        self._scheduled[queue.id] = due_ms
        heappush(self._timers, (due_ms, queue.id))
        self._arm()

    def _arm(self) -> None:
        while self._timers and self._scheduled.get(self._timers[0][1]) != self._timers[0][0]:
            heappop(self._timers)  # rescheduled or gone since
        if not self._timers:
            return
        due_ms = self._timers[0][0]
        if self._timer is not None and self._timer_due <= due_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # while opening; `start` schedules again
            return
        self._timer_due = due_ms
        self._timer = loop.call_later(max(0, due_ms - self.now_ms()) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self.now_ms()
        while self._timers and self._timers[0][0] <= now_ms:
            due_ms, queue_id = heappop(self._timers)
            if self._scheduled.get(queue_id) == due_ms:
                del self._scheduled[queue_id]
                queue = self.by_id.get(queue_id)
                if queue is not None:
                    queue.on_time(now_ms)
        self._arm()

    def note_read_ahead(self, level: Level) -> None:
        """The level was served and keeps what its consumers had no credit for."""
        kept = level.read_ahead_bytes
        self._read_ahead_bytes += kept - self._read_ahead.pop(level, 0)
        if kept:
            self._read_ahead[level] = kept
        while self._read_ahead_bytes > READ_AHEAD_BYTES_MAX:
            oldest = next(iter(self._read_ahead))
            self._read_ahead_bytes -= self._read_ahead.pop(oldest)
            oldest.forget_read()

    def note_undecodable(self, log: Log, offset: int, error: Exception) -> None:
        """A batch that no queue can read is left out; said once."""
        self.undecodable += 1
        if (log.id, offset) not in self._undecodable and len(self._undecodable) < UNDECODABLE_MAX:
            self._undecodable.add((log.id, offset))
            logger.error("log %d, offset %d: no queue can read this batch, it is left out: %s", log.id, offset, error)

    def read_in_thread(self, reader: CatchUp, done: Callable[[list[Piece], int], None]) -> None:
        """Old records are read beside the loop; `done` runs on it."""
        loop = asyncio.get_running_loop()
        looked = reader.look(self.broker.ticker.head_stamp)
        future = loop.run_in_executor(threads_for(looked), reader.fetch, looked)

        def finish(future: asyncio.Future[tuple[list[Piece], int]]) -> None:
            if not future.cancelled():
                done(*future.result())

        future.add_done_callback(finish)


def _key(queue: Queue, level: Level) -> bytes:
    return queue.id.to_bytes(4, "big") + bytes((level.priority,))


class Queues:
    """The queues of one namespace, by name."""

    def __init__(self, service: QueueService, namespace: Namespace) -> None:
        self.service = service
        self.namespace = namespace
        self.by_name: dict[str, Queue] = {}
        self.deleted_listeners: list[Callable[[Queue], None]] = []
        self.policies = QueuePolicies(self)
        self.exchanges = Exchanges(self)
        self.dead_letters = DeadLetters(self)
        self.ticker = service.broker.ticker
        self.now_ms = service.now_ms
        self.schedule = service.schedule
        self.read_in_thread = service.read_in_thread
        self.journal_changes = service.journal_changes
        self.note_pending = service.note_pending
        self.touch = service.touch

    def __iter__(self) -> Iterator[Queue]:
        return iter(list(self.by_name.values()))

    def find(self, name: str) -> Queue | None:
        return self.by_name.get(name)

    def get(self, name: str) -> Queue:
        queue = self.by_name.get(name)
        if queue is None:
            raise NotFound(f"no queue {name!r} in namespace {self.namespace.name!r}", fix="mainstem queue ls")
        return queue

    def declare(
        self, name: str, settings: QueueSettings, *, reaches: Iterable[Reach] = (), condition: str = ""
    ) -> tuple[Queue, Written | None]:
        """Make a queue; it takes what is published from now on, and what its reaches say of the past."""
        if name in self.by_name:
            raise AlreadyExists(f"queue {name!r} already exists")
        if topic_of(DEFAULT, name) in self.namespace.views:
            raise AlreadyExists(
                f"{name!r} is a view; a queue needs a name of its own", fix=f"mainstem view describe {name}"
            )
        if len(self.service.by_id) >= QUEUES_MAX:
            raise Overloaded(f"there are {QUEUES_MAX} queues already", fix="mainstem queue rm NAME")
        reaches = list(reaches)
        for reach in reaches:
            if reach.kind in READING:
                self.namespace.check_stored(reach.filter)
        broker = self.service.broker
        broker.quotas.check_queues(self.namespace, len(self.by_name))
        if settings.durable and not settings.exclusive:
            broker.store.check_room()
        created = self.service.stamp_now()
        queue = Queue(self, broker.store.next_id(Sequence.QUEUE), name, settings, created, condition)
        self._add(queue)
        for reach in reaches:
            reach.start = created if reach.start == NOW else reach.start
            queue.add_reach(reach)
        queue.begin(min((reach.start for reach in queue.reaches.all), default=created), count=True)
        if queue.numbers is not None:
            queue.numbers.advance(queue.ready, created)
        return queue, self.save(queue)

    def alter(self, queue: Queue, settings: QueueSettings) -> Written | None:
        """Declared otherwise from now on. Not its kind, nor how long it lives."""
        queue.declared = settings
        self.limit(queue)
        return self.save(queue)

    def limit(self, queue: Queue) -> None:
        """What it obeys may have changed: what is over its limits leaves."""
        settings = self.policies.effective(queue.name, queue.declared)
        if settings == queue.settings:
            return
        queue.set_limits(settings)
        for level in queue.levels:
            level.cursor.deliveries_max = settings.deliveries_max
        queue.limits.enforce()
        queue.on_time(self.now_ms())

    def _add(self, queue: Queue) -> None:
        if queue.settings.kind is Kind.STREAM:
            queue.numbers = StreamNumbers(queue)
        self.by_name[queue.name] = queue
        self.service.by_id[queue.id] = queue

    def save(self, queue: Queue) -> Written | None:
        """Write its declaration; None for a transient queue, which no restart sees."""
        if not queue.settings.durable or queue.settings.exclusive:
            return None
        store = self.service.broker.store
        written = store.put_item(ItemKind.QUEUE, self.namespace.name, queue.name, queue.to_document())
        queue.saving = written

        def end(_: Future[None]) -> None:
            """In the store's thread."""
            if queue.saving is written:
                queue.saving = None

        written.add_done_callback(end)
        return written

    def load(self, item: Item) -> None:
        document: dict[str, Any] = item.body
        settings = QueueSettings.from_document(document["settings"])
        condition = document.get("condition", "")
        queue = Queue(self, int(document["id"]), item.name, settings, int(document["created"]), condition)
        self._add(queue)
        for reach in document["reaches"]:
            queue.add_reach(
                Reach(reach["kind"], reach["filter"].encode(), reach["exchange"], reach["start"], reach["end"])
            )
        queue.begin(min((reach.start for reach in queue.reaches.all), default=queue.created), count=False)

    def delete(self, queue: Queue) -> Written | None:
        """Its records stay in the log; what it held is free."""
        if queue.deleted:
            return None
        queue.close()
        for level in queue.levels:
            self.service.note_read_ahead(level)
        self.by_name.pop(queue.name, None)
        self.service.by_id.pop(queue.id, None)
        for listener in list(self.deleted_listeners):
            listener(queue)
        if not queue.settings.durable or queue.settings.exclusive:
            return None
        return self.service.broker.store.delete_item(ItemKind.QUEUE, self.namespace.name, queue.name)

"""The fast lane of a queue in plain Python. See `lane.py`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mainstem.broker._live_reference import RecordRef, Sink, visible_batches
from mainstem.codec.batch import KIND_DATA, decode_batch, frame_heads, verify_frame
from mainstem.model.errors import CorruptFrame
from mainstem.model.origin import Origin, RecordFlag
from mainstem.model.record import Record

if TYPE_CHECKING:
    from mainstem.broker.namespace import Namespace
    from mainstem.cursor.queue import QueueCursor

EXPIRATION_BIT = 0x01  # of the high byte of AMQP's property flags
QUEUE_ID_SIZE = 4
ENTRIES_MAX = 10_000
INFLATED_BYTES_MAX = 64 << 20
FRAME_HEAD_SIZE = 48


class Entry:
    """Why the records of one topic enter a queue."""

    def __init__(
        self,
        *,
        anything: bool = False,
        default: bool = False,
        plain: bool = False,
        exchanges: frozenset[bytes] = frozenset(),
    ) -> None:
        self.anything = anything
        self.default = default
        self.plain = plain
        self.exchanges = exchanges


class Taker:
    """A consumer of a queue. Subclasses define `take`; whoever raises `credit` wakes the queue."""

    def __init__(self, *, priority: int = 0, credit: int = 0, no_ack: bool = False) -> None:
        self.priority = priority
        self.credit = credit
        self.no_ack = no_ack
        self.queue: Any = None

    def take(self, record: RecordRef, redelivered: bool, attempts: int) -> bool:
        """Take the record, or say False for want of room (then the queue offers it to another, or keeps it)."""
        raise NotImplementedError

    def on_queue_deleted(self) -> None:
        """The queue is gone; nothing more comes."""


class Lane(Sink):
    def __init__(self, namespace: Namespace, queue_id: int, owner: Any) -> None:
        super().__init__(namespace)
        self.queue_id = queue_id.to_bytes(QUEUE_ID_SIZE, "big")
        self.owner = owner
        self.direct = False
        self.expiring = False  # some record that entered may expire before the queue's own limit
        self.inspect = False  # the owner wants to see each record that enters (priorities, conditions)
        self.room = 0  # how many more leases the cursor allows
        self.newest = -1  # the highest stamp that entered
        self.dirty = False
        self.turns: list[int] = []
        self.groups: list[list[Taker]] = []
        self._acked = array("q")
        self._clear()

    def _clear(self) -> None:
        self._entered = self._entered_bytes = 0
        self._entered_last = self._handed_last = -1
        self._leased = array("q")
        self._passed = self._handed_bytes = 0

    def set_takers(self, takers: list[Taker]) -> None:
        """Who may be handed records: turns are taken among those of equal priority, higher priorities first."""
        by_priority: dict[int, list[Taker]] = {}
        for taker in sorted(takers, key=lambda taker: -taker.priority):
            by_priority.setdefault(taker.priority, []).append(taker)
        self.groups = list(by_priority.values())
        self.turns = [0] * len(self.groups)

    @property
    def busy(self) -> bool:
        """Whether anything happened since the cursor was told."""
        return self._entered > 0 or self._handed_last >= 0

    @property
    def entered_count(self) -> int:
        """What entered since then."""
        return self._entered

    @property
    def wanted(self) -> bool:
        """Whether some taker has credit."""
        return any(taker.credit > 0 for group in self.groups for taker in group)

    def merge(self, entries: list[Entry]) -> Entry:
        """One topic matched by several of the queue's filters."""
        return Entry(
            anything=any(entry.anything for entry in entries),
            default=any(entry.default for entry in entries),
            plain=any(entry.plain for entry in entries),
            exchanges=frozenset().union(*(entry.exchanges for entry in entries)),
        )

    @property
    def credit(self) -> int:
        """What all takers together would take."""
        return sum(max(0, taker.credit) for group in self.groups for taker in group)

    def accepts(self, record: RecordRef, entry: Entry) -> bool:
        if entry.anything:
            return True
        if record.origin == Origin.AMQP:
            named = record.header(b"ms-queues")
            if named is not None:
                size = QUEUE_ID_SIZE
                return any(named[at : at + size] == self.queue_id for at in range(0, len(named), size))
        if record.origin != Origin.AMQP:
            return entry.plain
        if record.flags & RecordFlag.DEFAULT_EXCHANGE:
            return entry.default
        exchange = record.header(b"ms-exchange")
        return entry.plain if exchange is None else exchange in entry.exchanges

    def push(self, record: RecordRef, options: Any) -> bool:
        if not self.accepts(record, options):
            return True
        if self.inspect and not self.owner.inspect(record):
            return True
        if not self.dirty:
            self.dirty = True
            self.owner.on_dirty()
        if record.stamp <= self.newest:  # a transaction that committed after younger records were written
            self.owner.admit(record)
            return True
        self.newest = record.stamp
        self._entered += 1
        self._entered_last = record.stamp
        self._entered_bytes += record.value_size
        if self.direct and self.hand(record, False, 0):
            return True
        self.direct = False
        if not self.expiring:
            self.expiring = may_expire(record)
        return True

    def hand(self, record: RecordRef, redelivered: bool, attempts: int) -> bool:
        """Give the record to the next taker with credit and room; False if there is none."""
        if self.room <= 0:
            return False
        for number, group in enumerate(self.groups):
            for step in range(len(group)):
                at = (self.turns[number] + step) % len(group)
                taker = group[at]
                if taker.credit > 0 and self.give(taker, record, redelivered, attempts):
                    self.turns[number] = (at + 1) % len(group)
                    return True
        return False

    def give(self, taker: Taker, record: RecordRef, redelivered: bool, attempts: int) -> bool:
        """Give the record to this taker, if it takes it."""
        if not taker.take(record, redelivered, attempts):
            return False
        taker.credit -= 1
        self._handed_bytes += record.value_size
        self._handed_last = record.stamp
        if taker.no_ack:
            self._passed += 1
        else:
            self._leased.append(record.stamp)
            self.room -= 1
        return True

    def tell(self, cursor: QueueCursor) -> int:
        """Tell the cursor what happened since the last call; how many records were handed out."""
        leased, passed, owner = self._leased, self._passed, self.owner
        try:
            if self._entered:
                cursor.enter(self._entered_last, self._entered)
                owner.totals.entered += self._entered
            cursor.hand_out(leased, passed, self._handed_last + 1)
            owner.totals.delivered += len(leased)
            owner.totals.delivered_no_ack += passed
            owner.ready_bytes = max(0, owner.ready_bytes + self._entered_bytes - self._handed_bytes)
        finally:
            self._clear()
        return len(leased) + passed

    def forget_events(self) -> int:
        """The cursor knows already; how many records were handed to takers that do not ack."""
        passed = self._passed
        self._clear()
        return passed

    def ack(self, position: int) -> bool:
        """Note an ack; True if it is the first since `take_acked`."""
        self._acked.append(position)
        return len(self._acked) == 1

    def take_acked(self) -> array[int]:
        acked, self._acked = self._acked, array("q")
        return acked

    def settle_acked(self, cursor: QueueCursor) -> int:
        """Settle what was acked since the last call; how many of them were leased."""
        return cursor.ack_all(self.take_acked())

    def stand(self, cursor: QueueCursor) -> bool:
        """Whether the next record may go straight to a taker, and how many; True if the cursor waits for a time."""
        self.direct = not cursor.ready
        self.room = cursor.room
        return cursor.timed


class Backlog:
    """Records read from the log that wait for takers: `plan` chooses them out of stored frames, `hand_all` gives them out.

    Holds what one or a few reads brought, never more; a consumer that takes one record at a time costs no second read.
    """

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.constant_from = 0  # from this stamp on the choice depends on the topic alone
        self.bytes = 0
        self._ref = RecordRef()
        self._planned: list[tuple[int, Record, Any, int]] = []  # stamp, record, log, origin
        self._at = 0
        self._entries: dict[bytes, Entry | None] = {}

    def __len__(self) -> int:
        return len(self._planned) - self._at

    def clear(self) -> None:
        self._planned, self._at, self.bytes = [], 0, 0

    def forget_entries(self) -> None:
        """The bindings changed."""
        self._entries.clear()

    def plan(
        self,
        log: Any,
        data: memoryview,
        offsets: Sequence[int],
        from_stamp: int,
        to_stamp: int,
        topic_of: dict[int, bytes],
        wants: Callable[[RecordRef], bool] | None = None,
        cold_before: int = 1 << 63,
        topic: bytes = b"",
    ) -> int:
        """Add the frames' records in [from_stamp, to_stamp) that the queue takes; `offsets` (sorted) chooses among them,
        empty = all. `wants` asks instead of the bindings; frames younger than `cold_before` are in the page cache as they
        were written, their checksums not worth a look; `topic` names it where all of the log is of one. A transaction's
        records lie where its marker says. How many were added."""
        if not len(self):
            self.clear()
        wanted, at, before = set(offsets), 0, len(self._planned)
        self.bytes += len(data)
        for head in frame_heads(data, log.id):
            batch = data[at + FRAME_HEAD_SIZE : at + head.size]
            at += head.size
            if head.kind != KIND_DATA or not batch:
                continue
            planned = len(self._planned)
            named = topic or (topic_of.get(head.topic_id, b"") if head.topic_id else None)
            try:
                verify_frame(data, at - head.size, log.id)
                for inner, base, stamp in visible_batches(log, batch, head.base_offset, head.stamp, from_stamp):
                    for record in decode_batch(inner, inflated_bytes_max=INFLATED_BYTES_MAX):
                        own = stamp + record.offset - base
                        if from_stamp <= own < to_stamp and (not wanted or record.offset in wanted):
                            self._plan_record(own, record, log, head.origin, named, wants)
            except CorruptFrame as error:  # one bad batch must not stop the queue
                del self._planned[planned:]
                self.lane.owner.on_undecodable(log, head.base_offset, error)
        return len(self._planned) - before

    def _plan_record(
        self,
        stamp: int,
        record: Record,
        log: Any,
        origin: int,
        named: bytes | None,
        wants: Callable[[RecordRef], bool] | None,
    ) -> None:
        ref = self._show(stamp, record, log, origin)
        if named is not None:
            ref.topic = named
        else:
            ref.set_topic()
        if (self._choose(ref) is not None) if wants is None else wants(ref):
            record.topic = ref.topic
            self._planned.append((stamp, record, log, origin))

    def sort(self) -> None:
        """After planning from several logs."""
        self._planned[self._at :] = sorted(self._planned[self._at :], key=lambda planned: planned[0])

    def first(self) -> RecordRef | None:
        """The next record to be handed out."""
        return self._show(*self._planned[self._at]) if len(self) else None

    def skip(self) -> None:
        """Done with the first."""
        self._at += 1
        if not len(self):
            self.clear()

    def hand_all(self) -> int:
        """Hand out as much as the takers take; how many."""
        handed = 0
        while (record := self.first()) is not None and self.lane.hand(record, False, 0):
            self.skip()
            handed += 1
        return handed

    def _show(self, stamp: int, record: Record, log: Any, origin: int) -> RecordRef:
        ref = self._ref
        ref.show(record, stamp)
        ref.log, ref.origin, ref.topic = log, origin, record.topic
        return ref

    def _choose(self, record: RecordRef) -> Entry | None:
        if record.stamp < self.constant_from:
            entry: Entry | None = self.lane.owner.entry_of(record.topic, record.stamp)
        elif record.topic in self._entries:
            entry = self._entries[record.topic]
        else:
            entry = self.lane.owner.entry_of(record.topic, record.stamp)
            if len(self._entries) < ENTRIES_MAX:
                self._entries[record.topic] = entry
        return entry if entry is not None and self.lane.accepts(record, entry) else None


def may_expire(record: RecordRef) -> bool:
    """Whether the record may carry an expiry; the exact answer is model/crossing.py's."""
    if record.origin == Origin.AMQP:
        properties = record.header(b"ms-amqp")
        if properties and properties[0] & EXPIRATION_BIT:
            return True
    elif record.header(b"ms-mqtt") is not None:
        return True
    return record.header(b"ms-expires-at") is not None

"""A consumer of a stream: a queue cursor over its offsets. Knows no protocol; who delivers asks `take`, and settles.

    unread ──take──▶ leased ──ack──▶ settled            leased ──nak, time──▶ released ──take──▶ leased
                       └──term──▶ settled                         └── deliveries used up ──▶ dead (stays in the stream)

With ack policy `none` nothing is leased: the cursor is one position. Leases belong to the consumer and not to a connection:
a lost connection frees nothing, only its time does, as with nats-server; so an ack is good until the message was
given up, also when its time had passed, and also after a restart.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.broker.streams.settings import ConsumerSettings
from mainstem.broker.streams.tap import Handed
from mainstem.cursor.queue import QueueCursor
from mainstem.model.record import Record

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream
    from mainstem.log.gather import Ticket

AHEAD_RECORDS = 256  # read before they are asked for
AHEAD_BYTES = 256 << 10
DEAD_MAX = 100_000


@dataclass(slots=True)
class Delivered:
    record: Record
    consumer_seq: int
    deliveries: int  # this one included
    pending: int  # messages behind it that wait

    @property
    def seq(self) -> int:
        return self.record.offset + 1


class Consumer:
    def __init__(
        self, stream: Stream, name: str, consumer_id: int, config: dict[str, Any], created_ns: int, start: int
    ) -> None:
        self.stream = stream
        self.name = name
        self.id = consumer_id
        self.created_ns = created_ns
        self.deleted = self.began_again = False
        self.consumer_seq = 0  # of the last delivery
        self.delivered = start  # sequence of the last message delivered for the first time
        self.delivered_ns = self.acked_ns = 0
        self.floor_seq, self.floor_consumer_seq = start, 0
        self.on_ready: Callable[[], None] = lambda: None
        self.on_dead: Callable[[list[int]], None] = lambda offsets: None
        self.on_deleted: Callable[[], None] = lambda: None
        self.cursor = QueueCursor(start, journaled=bool(config.get("durable_name")))
        self._early: set[int] = set()  # messages from before its start that it is to have
        self._numbers: dict[int, int] = {}  # offset delivered alone, and not settled → its consumer sequence
        self._handed: deque[tuple[array[int], int]] = deque()  # offsets delivered together, and the first's sequence
        self._given: dict[int, int] = {}  # of a sampled consumer: leased offset → when it was delivered
        self._ahead: deque[Record] = deque()
        self._ahead_at, self._ahead_next = 0, 0
        self._counted = (0, 0, -1, -1)  # start, end, version of removals, how many
        self.change(config)

    def change(self, config: dict[str, Any]) -> None:
        self.config = config
        self.settings = ConsumerSettings.of(config)
        self.cursor.deliveries_max = max(0, self.settings.max_deliver)
        self.forget_read()

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def rights(self) -> tuple[bytes, ...]:
        """Who takes from it may read all of these."""
        return self.stream.rights_on(self.settings.filters)

    @property
    def sampled(self) -> bool:
        return bool(self.config.get("sample_freq"))

    def given_ns(self, seq: int) -> int:
        """When a sampled consumer delivered a message that is not settled; 0 where it did not."""
        return self._given.pop(seq - 1, 0)

    @property
    def explicit(self) -> bool:
        return self.settings.ack_policy != "none"

    @property
    def ack_pending(self) -> int:
        """Delivered and not settled, also those that wait to be delivered again."""
        cursor = self.cursor
        return cursor.leased + cursor.released + cursor.delayed - len(self._early)

    @property
    def first_owed(self) -> int:
        """Older messages that it is to have (last per subject) and has not had."""
        return len(self._early)

    @property
    def redelivered(self) -> int:
        """Of those that are out now, delivered more than once."""
        cursor = self.cursor
        return sum(1 for position in cursor.attempted() if cursor.is_leased(position))

    @property
    def pending(self) -> int:
        """Messages that were never delivered."""
        start, end, version = self.cursor.next, self.stream.end, self.stream.removed.version
        known_start, known_end, known_version, count = self._counted
        if (known_start, known_version) != (start, version) or known_end > end or count < 0:
            count = self.stream.count(self.settings.filters, start, end)
        elif known_end < end:
            count += self.stream.count(self.settings.filters, max(start, known_end), end)
        self._counted = (start, end, version, count)
        return count

    @property
    def ack_floor(self) -> tuple[int, int]:
        """Consumer and stream sequence below which everything is settled."""
        if not self.explicit or not self.ack_pending:
            return self.consumer_seq, self.delivered
        floor = self.cursor.floor
        numbers = [number for position in self._unsettled() if (number := self._number_of(position))]
        return max(self.floor_consumer_seq, min(numbers, default=1) - 1), max(self.floor_seq, floor)

    def _number_of(self, offset: int) -> int:
        """The consumer sequence of its last delivery; 0 where a run before this one had it."""
        if offset in self._numbers:
            return self._numbers[offset]
        at = bisect_left(self._handed, offset, key=lambda handed: handed[0][-1])
        if at < len(self._handed):
            offsets, first = self._handed[at]
            place = bisect_left(offsets, offset)
            if offsets[place] == offset:
                return first + place
        return 0

    def ready(self) -> bool:
        """Whether `take` may find something."""
        return self.cursor.released > 0 or (self.cursor.next < self.stream.end and self.room() > 0)

    def room(self) -> int:
        """How many more may be delivered for the first time."""
        if not self.explicit or self.settings.max_ack_pending <= 0:
            return 1 << 30
        return self.settings.max_ack_pending - self.ack_pending

    # -- delivering ------------------------------------------------------------------------------------------------

    def peek(self) -> Record | None:
        """What `take` would give next."""
        self._wake()
        while (position := self.cursor.released_first()) is not None:
            record = self.stream.read_one(position)
            if record is not None:
                return record
            self._early.discard(position)
            self.cursor.drop_released(1)
        if self.room() <= 0:
            return None
        return self._next_unread()

    def has_ready(self) -> bool:
        return self.peek() is not None

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back once when there may be something to deliver."""
        self.stream.watchers.append(callback)

    def let_go(self) -> None:
        """It is deleted."""

    def put_back(self) -> None:
        """What `peek` gave is not taken after all."""

    def take(self, record: Record) -> Delivered:
        """Deliver what `peek` gave."""
        cursor, now_ms = self.cursor, self.stream.service.now_ms()
        self._early.discard(record.offset)
        self.consumer_seq += 1
        self.delivered_ns = self.stream.service.now_ns()
        offset = record.offset
        if cursor.released_first() == offset:
            cursor.lease_released(1)
            if not cursor.attempts(offset):
                self.delivered = offset + 1
            if not self.explicit:
                cursor.settle([offset])
        else:
            self._take_unread(offset)
        attempts = cursor.attempts(offset)
        if self.explicit:
            cursor.extend([offset], now_ms + self.settings.wait_ms(attempts))
            self._numbers[offset] = self.consumer_seq
            if self.sampled:
                self._given[offset] = self.delivered_ns
            self.stream.service.schedule(self)
        self.stream.service.note_pending(self)
        return Delivered(record, self.consumer_seq, attempts + 1, self.pending + self.first_owed)

    def _take_unread(self, offset: int) -> None:
        cursor = self.cursor
        pending = self.pending
        if self._ahead and self._ahead[0].offset == offset:
            self._ahead.popleft()
            self._ahead_at = offset + 1
        cursor.enter(max(offset, cursor.head), 1)
        if self.explicit:
            cursor.lease_many([offset])
        else:
            cursor.pass_over(offset + 1, 1)
        self.delivered = offset + 1
        _, end, version, _ = self._counted
        self._counted = (cursor.next, end, version, pending - 1)

    def hand_out(self, sink: Handed, count_max: int) -> int:
        """Deliver unread messages straight from the log, all with one change of state; how many the sink took.

        0 also where something else comes first: then `peek` and `take` are the way.
        """
        stream, cursor = self.stream, self.cursor
        self._wake()
        pending, count_max = self.pending, min(count_max, self.room())
        if cursor.released or self._early or self.sampled or count_max <= 0 or not pending:
            return 0
        sink.begin(self.consumer_seq, pending)
        offsets = stream.replay(self.settings.filters, cursor.next, sink, count_max)
        count = sink.count
        if not count:
            return 0
        offsets = offsets[:count]
        cursor.enter(max(offsets[-1], cursor.head), count)
        self.delivered_ns = stream.service.now_ns()
        if self.explicit:
            while self._handed and self._handed[0][0][-1] < cursor.floor:
                self._handed.popleft()
            self._handed.append((offsets, self.consumer_seq + 1))
            cursor.lease_span(offsets, stream.service.now_ms() + self.settings.wait_ms(0))
            stream.service.schedule(self)
        else:
            cursor.pass_over(offsets[-1] + 1, count)
        self.consumer_seq += count
        self.delivered = offsets[-1] + 1
        self._counted = (cursor.next, self._counted[1], self._counted[2], pending - count)
        stream.service.note_pending(self)
        return count

    def _next_unread(self) -> Record | None:
        stream, ahead = self.stream, self._ahead
        start = max(self.cursor.next, stream.first)
        while ahead and (ahead[0].offset < start or ahead[0].offset in stream.removed):
            ahead.popleft()
        if ahead:
            return ahead[0]
        at = max(start, self._ahead_next)
        while at < stream.end:
            before = at
            records, at = stream.read(
                self.settings.filters, at, stream.end, count_max=AHEAD_RECORDS, bytes_max=AHEAD_BYTES
            )
            if at <= before and not records:
                break
            if records:
                self._ahead_next = at
                ahead.extend(records)
                return ahead[0]
        self._ahead_next = at
        return None

    def forget_read(self) -> None:
        self._ahead.clear()
        self._ahead_next = 0
        self._counted = (0, 0, -1, -1)

    def deliver_first(self, offsets: Iterable[int]) -> None:
        """Records before its start that it is to have all the same (last per subject)."""
        for offset in offsets:
            self._early.add(offset)
            self.cursor.admit(offset)

    # -- settling --------------------------------------------------------------------------------------------------

    def ack(self, seq: int, *, stamp: int = 0) -> Ticket | None:
        """The ticket is released when that is durable. `stamp`: the record's, for those who know it by that."""
        offset = seq - 1
        if self.settings.ack_policy == "all":
            self._settle([p for p in self._unsettled() if p <= offset])
        else:
            self._settle([offset])
        return self.journal()

    def ack_many(self, offsets: array[int]) -> Ticket | None:
        """What one read of a socket brought, with ack policy `explicit`."""
        plain = self.stream.settings.retention == "limits" and not (self._numbers or self._given or self._early)
        if not plain or self.cursor.ack_plainly(offsets) < 0:
            self._settle(list(offsets))
        else:
            self.acked_ns = self.stream.service.now_ns()
            self.on_ready()
        return self.journal()

    def _unsettled(self) -> list[int]:
        cursor = self.cursor
        return [*cursor.lease_positions(), *cursor.released_positions(), *cursor._delayed]

    def _settle(self, offsets: list[int]) -> None:
        settled = self.cursor.settle(offsets)
        for offset in settled:
            self._numbers.pop(offset, None)
        if self._given:
            self._given = {offset: when for offset, when in self._given.items() if self.cursor.holds(offset)}
        if settled:
            self.acked_ns = self.stream.service.now_ns()
            self.stream.service.on_settled(self, settled)
            self.on_ready()

    def nak(self, seq: int, delay_ms: int = 0, *, stamp: int = 0) -> Ticket | None:
        returned = self.cursor.release([seq - 1], self.stream.service.now_ms(), delay_ms=delay_ms)
        self._bury(returned.dead)
        self._came_back()
        return self.journal()

    def progress(self, seq: int, *, stamp: int = 0) -> None:
        offset = seq - 1
        wait_ms = self.settings.wait_ms(self.cursor.attempts(offset))
        self.cursor.extend([offset], self.stream.service.now_ms() + wait_ms)
        self.stream.service.schedule(self)

    def term(self, seq: int, *, stamp: int = 0) -> Ticket | None:
        self._settle([seq - 1])
        return self.journal()

    def on_time(self, now_ms: int) -> None:
        returned = self.cursor.expire(now_ms)
        self._bury(returned.dead)
        self._came_back()
        self.journal()

    def _wake(self) -> None:
        self.cursor.wake(self.stream.service.now_ms())

    def _came_back(self) -> None:
        self._wake()
        self.stream.service.schedule(self)
        self.on_ready()

    def _bury(self, offsets: list[int]) -> None:
        if offsets:
            self.cursor.bury(offsets, "delivery_limit", self.stream.service.now_ms())
            for offset in offsets:
                self._numbers.pop(offset, None)
            if len(self.cursor.dead) > DEAD_MAX:
                self.cursor.drop_dead(sorted(self.cursor.dead)[: len(self.cursor.dead) - DEAD_MAX])
            self.on_dead(offsets)

    # -- what the stream tells -------------------------------------------------------------------------------------

    def on_removed(self, offsets: Iterable[int]) -> None:
        """Removed messages are owed no more."""
        if self._early:
            self._early.difference_update(offsets)
        if self.ack_pending:
            gone = [offset for offset in offsets if self.cursor.holds(offset)]
            self.cursor.settle(gone)
            for offset in gone:
                self._numbers.pop(offset, None)

    def on_removed_range(self, first: int, end: int) -> None:
        self._early = {offset for offset in self._early if offset >= end}
        if self.ack_pending:
            self.on_removed([offset for offset in self._unsettled() if first <= offset < end])

    def reset(self, start: int) -> Ticket | None:
        """Begin again at an offset, as if nothing had been delivered."""
        self.begin_again(start)
        ticket = self.stream.service.journal_reset(self, start)
        self.on_ready()
        return ticket

    def begin_again(self, start: int) -> None:
        self.cursor = QueueCursor(start, journaled=self.settings.durable)
        self.cursor.deliveries_max = max(0, self.settings.max_deliver)
        self.consumer_seq, self.delivered, self.delivered_ns, self.acked_ns = 0, start, 0, 0
        self.floor_seq, self.floor_consumer_seq = start, 0
        self.began_again = True
        self._early.clear()
        self._numbers.clear()
        self._handed.clear()
        self.forget_read()

    def journal(self) -> Ticket | None:
        return self.stream.service.journal_consumer(self)

    def recover(self) -> None:
        """After the journal: leases stay, each for its whole time anew."""
        self.cursor.drop_unread()
        positions = self.cursor.lease_positions()
        if positions:
            self.cursor.extend(positions, self.stream.service.now_ms() + self.settings.ack_wait_ms)
        self._numbers = dict.fromkeys(positions, 0)
        released = self.cursor.released_positions()
        self._early = {p for p in released if p < self.floor_seq and not self.cursor.attempts(p)}
        self.stream.service.schedule(self)

"""One log: an ordered, append-only sequence of batches with dense offsets, over any engine.

It knows no consumer and no protocol. Appending is a synchronous call that encodes into the open batch; `write` puts all
open batches into the engine with one call and moves `written`; the committer's rounds move `stable`. Tickets wait in
order of their offsets and are released as `stable` passes them.

A shared log also keeps the topic index: per offset the number of its topic, so that views cost what they match.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mainstem.codec.batch import make_frame, read_batch_head
from mainstem.codec.control import kafka_marker_batch
from mainstem.log import overflow
from mainstem.log.appended import Appended
from mainstem.log.committed import extent_header
from mainstem.log.durability import SYNC, Durability
from mainstem.log.gather import Gather, Ticket, TopicRef
from mainstem.log.low_marks import LowMarks
from mainstem.log.meters import Meters
from mainstem.log.part_times import PartTimes
from mainstem.log.readable import Readable
from mainstem.log.syncing import Syncing
from mainstem.log.topic_bitmaps import TopicBitmaps
from mainstem.model.errors import Overloaded, StorageFault
from mainstem.model.origin import Origin
from mainstem.storage.disk import REAL_DISK, Disk
from mainstem.storage.engine import (
    Buffer,
    Engine,
    FileParts,
    FrameRef,
    PreparingEngine,
    Stat,
)
from mainstem.storage.reservation import BLOCK_MIN, Pace

if TYPE_CHECKING:
    from mainstem.codec.batch import BatchHead
    from mainstem.codec.large_record import LargeRecord
    from mainstem.log.stamps import Stamps
    from mainstem.log.topic_index import TopicIndex
    from mainstem.storage.reservation import Reservation

logger = logging.getLogger("mainstem.log")

KIND_DATA, KIND_STATE, KIND_MARKER = 1, 2, 3
GATHERS = 16  # open batches that a log may have: one of each origin, and
STATE_SLOT = 15  # the journal's
UNSYNCED_BYTES_MAX = 64 << 20
FRAME_STAMPS_MAX = 1 << 32  # no frame takes more


class Hidden(Protocol):
    """What readers of committed records are not shown of a log with transactions."""

    def stable_end(self, stable: int) -> int:
        """They end before the first open transaction."""

    def aborted_in(self, start: int, end: int) -> Sequence[object]:
        """Aborted transactions that reach into the offsets; empty for almost all reads."""

    def is_aborted(self, producer_id: int, offset: int) -> bool: ...


class Log(Readable):
    is_asleep = False  # see `sleeping.py`
    index: TopicIndex | None
    engine_name = ""
    keeps = True  # False: `live_log.py`
    overflowed = 0  # records that went to make room

    def __init__(
        self,
        log_id: int,
        engine: Engine,
        stamps: Stamps,
        reservation: Reservation,
        *,
        durability: Durability = SYNC,
        index: TopicIndex | None = None,
        first_offset: int = 0,
        on_dirty: Callable[[Log], None] = lambda log: None,
        keep_start: Callable[[int], None] = lambda offset: None,
        times_path: Path | None = None,
        disk: Disk = REAL_DISK,
        meters: Meters | None = None,
    ) -> None:
        """`keep_start(offset)` makes it durable that streams begin there; it runs in a thread."""
        self.id = log_id
        self.durability = durability
        self.index = index
        self.bitmaps = TopicBitmaps(index.topics) if index is not None else None
        self.low_marks = LowMarks(index) if index is not None else None
        self.low_mark = 0  # of a dedicated log: what lies below was deleted on request
        self.times = PartTimes(self, times_path, disk)
        self.hidden: Hidden | None = None  # where transactions may be written: who knows how they ended
        self.compacted_end = 0  # parts below it were compacted by this run
        self.held_counts: dict[int, int] = {}  # base offset of a part cut down to held records → how many were kept
        self.on_dirty = on_dirty
        self.meters = meters or Meters()
        self.gathers: list[Gather | None] = [None] * GATHERS
        self._gathered = [(0, 0)] * GATHERS  # bytes and records of each origin's last batch: what the next may take
        self.stable_listeners: list[Callable[[Log], None]] = []
        self.on_awaited: Callable[[Log], None] = lambda log: None  # someone waits for what is already written
        self.make_room: overflow.MakeRoom = overflow.refuse
        self._stamps = stamps
        self._keep_start = keep_start
        self._reservation = reservation
        self._reserving = threading.Lock()
        self._closed = False
        self._open: list[Gather] = []
        self._pending: list[Appended] = []
        self._tickets: deque[tuple[Ticket, int]] = deque()
        self._dirty = self._adopts = False  # something prepared is among what is pending
        self.syncing = Syncing(self)
        self.use_engine(engine)
        self._pace = Pace()
        self._reserved_at = 0  # where `reserve_ahead` last stood
        self.held = False  # gathers and writes nothing: the metadata that names it is not committed yet
        self.unsynced_bytes = 0  # of a held log: what it gathered
        self.unsynced_bytes_max = UNSYNCED_BYTES_MAX  # beyond it publishers wait
        self.on_disk = True
        self.removed = False  # its topic was deleted: whoever still reads it finds nothing
        self.refusal: Overloaded | None = None  # set while the disk is nearly full: data is refused, state is not
        self._start(engine.stat(), first_offset)

    def use_engine(self, engine: Engine) -> None:
        """The one it has, or one that stands in front of it."""
        self.engine = engine
        self._read_now = engine.read if engine.is_local else engine.read_now
        self.file_parts = engine if isinstance(engine, FileParts) else None
        self.syncing.use_engine(engine)
        self.preparing_engine = engine if isinstance(engine, PreparingEngine) else None

    def _start(self, stat: Stat, first_offset: int) -> None:
        """Go on behind everything that was ever given out, whether it was kept or not."""
        reservation = self._reservation
        end = max(stat.end_offset, reservation.end_offset, first_offset)
        empty = stat.start_offset == stat.end_offset
        self.start_offset = end if empty else max(stat.start_offset, first_offset)
        if self.index is None and not empty and end > stat.end_offset:  # with an index records are counted there
            reservation.add_gap(stat.end_offset, end, stat.start_offset)
        self.epoch = reservation.epoch if reservation.clean else reservation.epoch + 1
        self.next_offset = self.written = self.stable = end
        known = self._stamps.next - 1  # of the last frame only the first stamp is known: say too much, never too little
        self.last_stamp = 0 if empty else known if known >= stat.last_stamp else stat.last_stamp + FRAME_STAMPS_MAX

    def count(self, start: int, end: int) -> int:
        """Of a log of one topic: the records in [start, end). What compaction took out is counted all the same."""
        start = max(start, self.start_offset)
        return max(0, end - start - self._reservation.missing(start, end))

    @property
    def is_shared(self) -> bool:
        return self.index is not None

    @property
    def topic_count(self) -> int:
        """Of a shared log; those that were deleted do not count while their records wait for retention."""
        if self.index is None:
            return 0
        return len(self.index.topics) - (self.low_marks.gone_count() if self.low_marks is not None else 0)

    def remembers(self, topic: bytes) -> bool:
        """Whether a shared log holds one of the topics that are remembered while it sleeps (`Logs.remembered`)."""
        return self.index is not None and bool(self.index.topics.find(topic))

    # -- appending -------------------------------------------------------------------------------------------------

    def open(self, origin: int, kind: int = KIND_DATA) -> Gather:
        """The batch that this tick gathers for `origin`."""
        slot = STATE_SLOT if kind == KIND_STATE else origin
        gather = Gather(self, origin, kind)
        gather.expect(*self._gathered[origin])
        self.gathers[slot] = gather
        self._open.append(gather)
        self._mark_dirty()
        return gather

    def rotate(self, gather: Gather) -> None:
        """The batch is large enough: who publishes next opens another."""
        self.gathers[STATE_SLOT if gather.kind == KIND_STATE else gather.origin] = None

    def state(self) -> Gather:
        """The batch that this tick gathers for the journal."""
        return self.gathers[STATE_SLOT] or self.open(Origin.BROKER, KIND_STATE)

    def append_marker(
        self, route: TopicRef, *, commit: bool, producer_id: int, producer_epoch: int, first_offset: int, count: int
    ) -> Appended:
        """End a transaction that wrote `count` offsets here, from `first_offset` on. See `committed.py`."""
        extent = max(count, self.next_offset - first_offset)
        batch = kafka_marker_batch(
            self.next_offset,
            commit=commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            time_ms=self._stamps.now_ms(),
            headers=[extent_header(first_offset, extent)],
        )
        return self._append_batch(batch, read_batch_head(batch, 0), route, Origin.KAFKA, 0, extent)

    def append_batch(
        self,
        batch: Buffer,
        head: BatchHead,
        route: TopicRef,
        *,
        origin: int,
        topic_id: int,
        owned: bool = False,
        prepared: Path | None = None,
    ) -> Appended:
        """A ready RecordBatch, stored as it is; offset, epoch and stamp are given now, the tick writes it.

        `owned`: the batch lies in a writable buffer that is nobody else's, and need not be copied to be patched.
        `prepared`: a file that has the batch already, behind room for the frame's head (`PreparingEngine`).
        """
        if self.refusal is not None:
            raise self.refusal
        appended = self._append_batch(batch, head, route, origin, topic_id, owned=owned)
        if prepared is not None:
            appended.prepared, self._adopts = prepared, True
        return appended

    def append_large(self, record: LargeRecord, prepared: Path, route: TopicRef, ticket: Ticket, origin: int) -> None:
        """A record that is written already, beside the log (`large.py`): it gets its place."""
        if self._closed:
            raise Overloaded("the broker is shutting down", fix="publish it again")
        base, stamp = self._take(1)
        record.place(self.id, base, stamp, self.engine.durable_offset, origin, self.epoch)
        ticket.base_offset, ticket.end_offset, ticket.stamp = base, base + 1, stamp
        ref = FrameRef(base, 1, stamp, record.size)
        item = Appended(self, [record.front], ref, ticket, KIND_DATA, origin, route=route, large=record)
        item.numbers, item.prepared = self._numbers(route, 1), prepared
        self._adopts = True
        self._add(item)

    def _append_batch(
        self,
        batch: Buffer,
        head: BatchHead,
        route: TopicRef,
        origin: int,
        topic_id: int,
        stamps_more: int = 0,
        *,
        owned: bool = False,
    ) -> Appended:
        ticket, count = Ticket(self), head.count
        data: list[Buffer]
        held: tuple[Buffer, int] | None = None
        if self.held:
            base, stamp = self._take_offsets(count), -1
            held = batch if owned else bytearray(batch), topic_id
            data, size = [], len(batch)
        else:
            base, stamp = self._take(count, stamps_more)
            durable = self.engine.durable_offset
            front, body = make_frame(
                batch, self.id, base, stamp, durable, origin, topic_id, self.epoch, KIND_DATA, owned
            )
            data, size = [front, body], len(front) + len(body)
        ref = FrameRef(base, count, stamp, size)
        numbers = self._numbers(route, count) if self.index is not None else b""
        ticket.base_offset, ticket.end_offset, ticket.stamp = base, base + count, stamp
        return self._add(
            Appended(self, data, ref, ticket, KIND_DATA, origin, None, None, route, numbers, stamps_more, held)
        )

    def _add(self, appended: Appended) -> Appended:
        self._pending.append(appended)
        if not self._dirty:
            self._mark_dirty()
        return appended

    def _numbers(self, route: TopicRef, count: int) -> bytes:
        if self.index is None:
            return b""
        if route.number == 0:
            route.renumber()
        return route.number.to_bytes(4, "little") * count

    def _mark_dirty(self) -> None:
        if not self._dirty:
            self._dirty = True
            self.on_dirty(self)

    def _take(self, count: int, stamps_more: int = 0) -> tuple[int, int]:
        base = self.next_offset
        if base + count > self._reservation.end_offset:
            self._reserve(base + count)
        stamp = self._stamps.take(count + stamps_more)
        self.next_offset = base + count
        return base, stamp

    def _take_offsets(self, count: int) -> int:
        """Without stamps: who catches up by stamp meanwhile must not pass what is written later."""
        base = self.next_offset
        if base + count > self._reservation.end_offset:
            self._reserve(base + count)
        self.next_offset = base + count
        return base

    # -- while its metadata is being committed ---------------------------------------------------------------------

    def hold_writes(self) -> None:
        """Gather what is published, and write nothing before `release_writes`."""
        self.held = True

    def reserve_first(self) -> None:
        """In a thread, while it is held with what a publish brought: the fsyncs of its first offsets keep nobody waiting
        then. A log that nothing waits for stays without a file."""
        with self._reserving:
            gathered = sum(gather.count for gather in tuple(self._open))
            if gathered and self.held and not self._closed and not self._pace.used:
                end = self.next_offset + gathered
                self._reservation.extend(end + self._pace.next(end, self._stamps.now_ms()), self.epoch)

    def release_writes(self) -> None:
        """The metadata is committed."""
        self.held, self.unsynced_bytes = False, 0
        for item in self._pending:
            if item.held is not None:
                self._stamp(item, *item.held)
        if self._open or self._pending:
            self._mark_dirty()

    def _stamp(self, item: Appended, batch: Buffer, topic_id: int) -> None:
        base, count, durable = item.ref.base_offset, item.ref.count, self.engine.durable_offset
        stamp = self._stamps.take(count + item.stamps_more)
        item.data = list(
            make_frame(batch, self.id, base, stamp, durable, item.origin, topic_id, self.epoch, KIND_DATA, True)
        )
        item.ref = FrameRef(base, count, stamp, sum(map(len, item.data)))
        item.ticket.stamp, item.held = stamp, None

    def withdraw(self, error: Exception) -> None:
        """The metadata was refused: so is everything gathered. The log is removed next."""
        for gather in self._open:
            gather.ticket.fail(error)
        for item in self._pending:
            item.ticket.fail(error)
        self._open.clear()
        self._pending.clear()
        self.unsynced_bytes, self.next_offset = 0, self.written

    def _reserve(self, end: int) -> None:
        """Offsets are reserved durably before use, in blocks that grow with the rate: one small fsync each."""
        with self._reserving:
            if end > self._reservation.end_offset or self._reservation.clean:
                self._reservation.extend(end + self._pace.next(end, self._stamps.now_ms()), self.epoch)

    @property
    def is_low(self) -> bool:
        """Half of the offsets that it may give out are given out: `reserve_ahead` is due."""
        return self._pace.used and self._reservation.end_offset - self.next_offset < self._pace.block // 2

    def reserve_ahead(self) -> None:
        """In a thread, so that appending seldom waits for that fsync: twice what was used since the last call should be
        there until the next."""
        used, self._reserved_at = self.next_offset - self._reserved_at, self.next_offset
        left = self._reservation.end_offset - self.next_offset
        if self.is_low or (self._pace.used and left < 2 * used):
            with self._reserving:
                start = self.next_offset
                end = start + self._pace.next(start, self._stamps.now_ms())
                if end > self._reservation.end_offset and not self._closed:  # the loop may have been first
                    self._reservation.extend(end, self.epoch)

    def lower_reservation(self) -> bool:
        """On the loop: a log that fell silent needs no more than the smallest block; True: `keep_reservation` is due.

        In this order: the loop gives out nothing beyond before the file says that nothing is.
        """
        reservation = self._reservation
        if reservation.clean or reservation.end_offset < self.next_offset + 2 * BLOCK_MIN or self._closed:
            return False
        if not self._pace.is_idle(self.next_offset, self._stamps.now_ms()):
            return False
        reservation.lower(self.next_offset + BLOCK_MIN)
        self._pace.rest()
        return True

    def keep_reservation(self) -> None:
        """In a thread, after `lower_reservation`."""
        with self._reserving:
            if not self._closed:
                self._reservation.keep()

    def skip_to(self, offset: int) -> None:
        """Leave a gap up to `offset`: a topic that moves here goes on with its own offsets, which were further on."""
        if offset > self.next_offset:
            self._reserve(offset)
            self.next_offset = offset
            if not self._pending:
                self.written = offset
                if not self._tickets:
                    self.stable = offset

    # -- writing: once per tick ------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Close the open batches: each gets its offsets and stamps and joins what is to be written."""
        for gather in self._open:
            slot = STATE_SLOT if gather.kind == KIND_STATE else gather.origin
            if self.gathers[slot] is gather:
                self.gathers[slot] = None
            if not gather.count:
                continue
            if self.refusal is not None and gather.kind == KIND_DATA:
                self.meters.refused += gather.count
                gather.ticket.fail(self.refusal)
                continue
            try:
                self._seal(gather)
            except Overloaded as error:  # no room to reserve offsets or stamps
                gather.ticket.fail(error)
        self._open.clear()

    def _seal(self, gather: Gather) -> None:
        count, kind, origin, ticket = gather.count, gather.kind, gather.origin, gather.ticket
        base, stamp = self._take(count)
        numbers = gather.topic_numbers() if self.index is not None else b""
        durable = self.engine.durable_offset  # not `stable`, which may run ahead of the disk (durability = os)
        frame = gather.seal_frame(self.id, base, stamp, durable, kind, origin, 0, self.epoch)
        self._gathered[origin] = len(frame), count
        ticket.base_offset, ticket.end_offset, ticket.stamp = base, base + count, stamp
        ref = FrameRef(base, count, stamp, len(frame))
        self._pending.append(Appended(self, [frame], ref, ticket, kind, origin, gather, frame, None, numbers))

    def write(self) -> list[Appended]:
        """Put everything pending into the engine with one call. What could not be written fails its tickets."""
        began_ns = time.perf_counter_ns()
        if self.held:
            self._dirty = False
            self.unsynced_bytes = sum(gather.size for gather in self._open) + sum(
                item.ref.size for item in self._pending
            )
            return []
        self.seal()
        self._dirty = False
        pending, self._pending = self._pending, []
        if not pending:
            return []
        try:
            if self._adopts:
                self._adopts = False
                overflow.append_apart(self, pending)
            else:
                data = pending[0].data if len(pending) == 1 else [part for item in pending for part in item.data]
                overflow.append(self, data, [item.ref for item in pending])
        except overflow.Partly as partly:
            self._refuse(pending[partly.stored :], partly.error)
            del pending[partly.stored :]
        except Overloaded as error:
            self._refuse(pending, error)
            return []
        self.meters.append_ns.add(time.perf_counter_ns() - began_ns)
        self.meters.records += self.next_offset - self.written
        self.written = self.next_offset
        self.last_stamp = pending[-1].stamp_end - 1
        for item in pending:
            self.unsynced_bytes += item.ref.size
            self._tickets.append((item.ticket, item.ref.size))
            if self.index is not None:
                self.index.add_packed(item.ref.base_offset, item.numbers)
        return pending

    def _refuse(self, pending: list[Appended], error: Overloaded) -> None:
        """The offsets were never seen by anyone, so they are free again."""
        self.meters.refused += self.next_offset - pending[0].ref.base_offset
        self.next_offset = pending[0].ref.base_offset
        for item in pending:
            item.ticket.fail(error)

    def sync(self) -> None:
        """In a thread, one at a time: what was written before the call survives a power cut after it."""
        self.syncing.await_promises()
        self.engine.sync()

    def now_ms(self) -> int:
        """By the clock its stamps are taken from."""
        return self._stamps.now_ms()

    def mark_stable(self, end: int) -> None:
        """Everything below `end` has fulfilled the policy: release its tickets, wake who reads by offset."""
        if end <= self.stable:
            return
        self.stable = end
        tickets = self._tickets
        while tickets and tickets[0][0].end_offset <= end:
            ticket, size = tickets.popleft()
            self.unsynced_bytes -= size
            ticket.release()
        for listener in tuple(self.stable_listeners):
            listener(self)

    # -- keeping and ending --------------------------------------------------------------------------------------

    def sealed_unsynced(self) -> bool:
        """Whether a sealed part is not durable yet (durability os)."""
        durable = self.engine.durable_offset
        return any(part.sealed and part.end_offset > durable for part in self.engine.stat().parts)

    def move_start(self, offset: int) -> None:
        """Streams no longer see what lies below; it may still be held for others."""
        self.start_offset = max(self.start_offset, min(offset, self.written))

    def trim(self, before_offset: int) -> int:
        """Drop whole parts below; returns where the log now begins. Any thread; `forget_topics` follows on the loop."""
        self.move_start(before_offset)
        return self.engine.trim(before_offset)

    def forget_topics(self, start_offset: int) -> list[int]:
        """The numbers of topics whose last record lay below. The index belongs to the loop's thread."""
        return list(self.index.trim(start_offset)) if self.index is not None else []

    def keep_start(self) -> None:
        """Make the start durable, or the next run would show again what retention took away. In a thread."""
        self._keep_start(self.start_offset)

    def close(self) -> None:
        if self.held:
            self.withdraw(StorageFault(f"log {self.id}: the broker stopped before its topic was committed"))
        self.write()
        self.sync()
        self.mark_stable(self.written)
        if self.index is not None:
            self.index.close()
        self.engine.close()
        with self._reserving:  # a thread may be reserving ahead
            self._closed = True
            if self._reservation.epoch != self.epoch:
                self._reservation.extend(self.next_offset, self.epoch)
            if not self._reservation.clean:
                self._reservation.settle(self.next_offset)

"""What a partition remembers of its producers: duplicates, gaps, open and aborted transactions.

State is kept per topic-partition for 24 hours: the last five batches of each producer (a client has at most five in
flight), the first offset of each open transaction, and the aborted ones that readers may still meet. It is derived from
the log. To bound what a start must read it is journaled every 64 MiB and with each snapshot; from there the heads of
stored batches are read on.

A topic that moves goes on in another log, its producers with it: they belong to the partition, and the state of the log
it left keeps only what readers of that log need (`moved`). A start joins what the logs of a partition tell of a producer,
in the order of their offsets, which no move breaks.

An unknown producer is accepted at any sequence: its state may have expired, or be lost with the tail of a log that
promised less than `sync`. Refusing it would stop a client for good; what duplicates there were can no longer be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

import msgspec

from mainstem.broker.state.journal import StateKeeper
from mainstem.codec.batch import FRAME_HEAD_SIZE, KIND_DATA, decode_batch, frame_heads, read_batch_head
from mainstem.codec.control import read_marker
from mainstem.log.damaged import readable_pieces
from mainstem.model.origin import Origin

if TYPE_CHECKING:
    from mainstem.broker.topics.topic import Partition
    from mainstem.codec.batch import BatchHead
    from mainstem.log.log import Log

BATCHES_KEPT = 5
PRODUCERS_MAX = 20_000  # per partition; the longest silent one goes first
ABORTED_MAX = 100_000  # per partition
EXPIRY_MS = 24 * 3_600_000
KEEP_EVERY_BYTES = 64 << 20
SEQUENCE_MAX = (1 << 31) - 1
SCAN_BYTES = 4 << 20
MARKER_BYTES_MAX = 4_096


class Verdict(Enum):
    APPEND = auto()
    DUPLICATE = auto()
    OUT_OF_ORDER = auto()
    FENCED = auto()


class Sent(msgspec.Struct, array_like=True):
    """One batch of a producer, as far as a repeat must be recognised."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    end_offset: int


class Producer(msgspec.Struct, array_like=True):
    epoch: int
    last_ms: int
    sent: list[Sent]


FLOOR = -1  # instead of a topic id: a state that only says up to where the whole log was looked through
KEEP_EVERY_RECORDS = 100_000


class Aborted(msgspec.Struct, array_like=True):
    producer_id: int
    first_offset: int
    last_offset: int  # of its marker


class _Kept(msgspec.Struct, array_like=True):
    scanned_end: int
    producers: dict[int, Producer]
    open: dict[int, int]
    aborted: list[Aborted]


@dataclass(slots=True)
class PartitionProducers:
    producers: dict[int, Producer] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)  # producer id → first offset of its transaction
    aborted: list[Aborted] = field(default_factory=list)  # in order of their markers
    scanned_end: int = 0  # state reflects the log below it
    unkept_bytes: int = 0
    moved: bool = False  # the partition goes on in another log, whose state has the producers now

    def check(self, head: BatchHead) -> tuple[Verdict, Sent | None]:
        """Whether the batch is next, a repeat (and of what), out of order, or from a producer that was replaced."""
        known = self.producers.get(head.producer_id)
        if known is None:
            return Verdict.APPEND, None
        if head.producer_epoch < known.epoch:
            return Verdict.FENCED, None
        if head.producer_epoch > known.epoch:
            return (Verdict.APPEND if head.base_sequence == 0 else Verdict.OUT_OF_ORDER), None
        last_sequence = _add(head.base_sequence, head.last_offset_delta)
        for sent in known.sent:
            if sent.base_sequence == head.base_sequence and sent.last_sequence == last_sequence:
                return Verdict.DUPLICATE, sent
        if not known.sent:
            return Verdict.APPEND, None
        in_order = head.base_sequence == _add(known.sent[-1].last_sequence, 1)
        return (Verdict.APPEND if in_order else Verdict.OUT_OF_ORDER), None

    def add(self, head: BatchHead, base_offset: int, end_offset: int, now_ms: int) -> None:
        """The batch was appended."""
        self.scanned_end = end_offset
        if head.producer_id < 0:
            return
        known = self.producers.pop(head.producer_id, None)
        if known is None or known.epoch != head.producer_epoch:
            known = Producer(head.producer_epoch, now_ms, [])
        known.last_ms = now_ms
        self.producers[head.producer_id] = known  # at the end: the order is that of last use
        if len(self.producers) > PRODUCERS_MAX:
            del self.producers[next(iter(self.producers))]
        last_sequence = _add(head.base_sequence, head.last_offset_delta)
        known.sent.append(Sent(head.base_sequence, last_sequence, base_offset, end_offset))
        del known.sent[:-BATCHES_KEPT]
        if head.transactional:
            self.open.setdefault(head.producer_id, base_offset)

    def undo(self, head: BatchHead, base_offset: int) -> None:
        """The batch could not be written after all; its offsets are free again."""
        known = self.producers.get(head.producer_id)
        if known is not None:
            known.sent = [sent for sent in known.sent if sent.base_offset < base_offset]
        if self.open.get(head.producer_id) == base_offset:
            del self.open[head.producer_id]
        self.scanned_end = min(self.scanned_end, base_offset)

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool, offset: int, now_ms: int) -> int | None:
        """A marker was appended at `offset`; returns where the transaction began here, None if it wrote nothing."""
        self.scanned_end = offset + 1
        first = self.open.pop(producer_id, None)
        if first is not None and not commit:
            self.aborted.append(Aborted(producer_id, first, offset))
            del self.aborted[:-ABORTED_MAX]
        known = self.producers.get(producer_id)
        if known is None or known.epoch < epoch:  # whoever still writes with an older epoch is fenced
            self.producers[producer_id] = Producer(epoch, now_ms, [])
        return first

    def stable_end(self, stable: int) -> int:
        """Where readers of committed records stop: before the first open transaction."""
        return min(self.open.values(), default=stable) if self.open else stable

    def aborted_in(self, start: int, end: int) -> list[Aborted]:
        return [one for one in self.aborted if one.last_offset >= start and one.first_offset < end]

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        return any(a.producer_id == producer_id and a.first_offset <= offset <= a.last_offset for a in self.aborted)

    def trim(self, start_offset: int, now_ms: int) -> None:
        self.aborted = [one for one in self.aborted if one.last_offset >= start_offset]
        for producer_id, known in list(self.producers.items()):
            if known.last_ms + EXPIRY_MS > now_ms:
                break  # the rest was used later
            if producer_id not in self.open:
                del self.producers[producer_id]

    def drop_from(self, offset: int) -> None:
        """The log ends at `offset`: what was remembered beyond it was never durable."""
        for known in self.producers.values():
            known.sent = [sent for sent in known.sent if sent.end_offset <= offset]
        self.open = {producer_id: first for producer_id, first in self.open.items() if first < offset}
        self.aborted = [one for one in self.aborted if one.last_offset < offset]
        self.scanned_end = min(self.scanned_end, offset)

    def take_over(self, before: PartitionProducers) -> None:
        """The partition goes on here. Both have the same producers from now on: what fails later is undone in either."""
        if before is self:
            return
        self.producers = join(self.producers, before.producers)
        before.producers = self.producers
        before.moved, self.moved = True, False

    def pack(self) -> bytes:
        producers = {} if self.moved else self.producers
        return msgspec.msgpack.encode(_Kept(self.scanned_end, producers, self.open, self.aborted))

    @staticmethod
    def unpack(data: bytes) -> PartitionProducers:
        kept = msgspec.msgpack.decode(data, type=_Kept)
        return PartitionProducers(kept.producers, kept.open, kept.aborted, kept.scanned_end)


def join(one: dict[int, Producer], other: dict[int, Producer]) -> dict[int, Producer]:
    """What two logs of a partition tell of its producers: the newest epoch of each, and of that the newest batches."""
    joined = dict(one)
    for producer_id, told in other.items():
        known = joined.get(producer_id)
        if known is None or known.epoch < told.epoch:
            joined[producer_id] = told
        elif known.epoch == told.epoch:
            sent = {batch.base_offset: batch for batch in (*known.sent, *told.sent)}
            newest = [sent[offset] for offset in sorted(sent)][-BATCHES_KEPT:]
            joined[producer_id] = Producer(told.epoch, max(known.last_ms, told.last_ms), newest)
    return dict(sorted(joined.items(), key=lambda item: item[1].last_ms)[-PRODUCERS_MAX:])


def _add(sequence: int, delta: int) -> int:
    total = sequence + delta
    return total if total <= SEQUENCE_MAX else total - SEQUENCE_MAX - 1


class Producers:
    """The state of every partition, by log and (in a shared log) topic id."""

    KIND = "kafka-producers"

    def __init__(self, journal: StateKeeper) -> None:
        self._journal = journal
        self._partitions: dict[tuple[int, int], PartitionProducers] = {}
        self._logs: dict[int, Log] = {}  # that were recovered
        self._stored_ends: dict[int, int] = {}  # where these ended
        self._lost: set[int] = set()  # those of which a restart may have taken what was acknowledged
        journal.register(self.KIND, self._apply, self._dump)

    def of(self, log: Log, topic_id: int) -> PartitionProducers:
        key = state_key(log, topic_id)
        known = self._partitions.get(key)
        if known is None:
            known = self._partitions[key] = PartitionProducers()
        if log.index is None:
            log.hidden = known
        return known

    def committed_end(self, log: Log) -> int:
        """Where readers of committed records stop, whatever topics the log holds."""
        return min(
            (state.stable_end(log.stable) for key, state in self._partitions.items() if key[0] == log.id),
            default=log.stable,
        )

    def aborted_of(self, log: Log, start: int, end: int) -> list[Aborted]:
        """The aborted transactions that a reader of [start, end) must leave out."""
        states = [state for key, state in self._partitions.items() if key[0] == log.id]
        return [one for state in states for one in state.aborted_in(start, end)]

    def count_bytes(self, log: Log, topic_id: int, state: PartitionProducers, size: int) -> None:
        """Journal the state now and then, so that a start need not read the whole log."""
        state.unkept_bytes += size
        if state.unkept_bytes >= KEEP_EVERY_BYTES:
            state.unkept_bytes = 0
            self._journal.put(self.KIND, _key(*state_key(log, topic_id)), state.pack())

    def keep_floors(self) -> None:
        """Now and then: of logs that grew since, all that changed, and up to where the log was looked through."""
        for log in self._logs.values():
            self.keep_floor(log, KEEP_EVERY_RECORDS)

    def keep_floor(self, log: Log, grown_by: int = 1) -> None:
        """Of one, if it grew by that many records."""
        floor = self._partitions.get((log.id, FLOOR))
        if log.written - (floor.scanned_end if floor is not None else 0) < grown_by:
            return
        before = floor.scanned_end if floor is not None else -1
        grown = {
            key: state
            for key, state in self._partitions.items()
            if key[0] == log.id and key[1] != FLOOR and state.scanned_end > before
        }
        for key, state in {**grown, **self._goings_on(grown.values())}.items():
            self._journal.put(self.KIND, _key(*key), state.pack())
        floor = self._partitions[log.id, FLOOR] = PartitionProducers(scanned_end=log.written)
        self._journal.put(self.KIND, _key(log.id, FLOOR), floor.pack())

    def _goings_on(self, states: Iterable[PartitionProducers]) -> dict[tuple[int, int], PartitionProducers]:
        """Of states that were moved: where their producers are now."""
        moved = {id(state.producers) for state in states if state.moved}
        found = {key: state for key, state in self._partitions.items() if not state.moved} if moved else {}
        return {key: state for key, state in found.items() if id(state.producers) in moved}

    def forget_log(self, log_id: int) -> None:
        """What it told of producers that went on elsewhere is written down there."""
        self._logs.pop(log_id, None)
        gone = {key: state for key, state in self._partitions.items() if key[0] == log_id}
        for key, state in self._goings_on(gone.values()).items():
            self._journal.put(self.KIND, _key(*key), state.pack())
        for key in gone:
            del self._partitions[key]
            self._journal.put(self.KIND, _key(*key), None)

    def move(self, before: Log, after: Log, topic_id: int) -> None:
        """A partition goes on in another log."""
        self.of(after, topic_id).take_over(self.of(before, topic_id))

    def trim(self, start_of: Callable[[int], int | None], now_ms: int) -> None:
        for (log_id, _), state in self._partitions.items():
            start = start_of(log_id)
            if start is not None:
                state.trim(start, now_ms)

    def recover(self, log: Log, now_ms: int) -> None:
        """Once, before anything is appended: read on from where the kept state of all its topics ends.

        A topic's own state ends at its last record. Other topics of the log may have had their first before that, and
        have no state yet: only a floor says that everything below it was looked at.
        """
        self._logs[log.id] = log
        stored_end = log.engine.stat().end_offset
        if log.is_asleep:  # the clean stop that closed it kept all that it says
            if not log.is_shared:
                self.of(log, 0)
            self._stored_ends[log.id] = stored_end
            return
        states = {topic_id: state for (log_id, topic_id), state in self._partitions.items() if log_id == log.id}
        for state in states.values():
            state.drop_from(stored_end)
        floor = states.get(FLOOR if log.index is not None or 0 not in states else 0)
        if floor is not None and FLOOR in states:
            floor = max(floor, states[FLOOR], key=lambda state: state.scanned_end)
        offset = max(floor.scanned_end if floor is not None else 0, log.start_offset)
        damaged = False
        for piece in readable_pieces(log, offset, SCAN_BYTES, "and which producers wrote them is not known"):
            damaged = damaged or piece is None
            if piece is not None:
                self._scan(log, piece.data, now_ms)
        if log.index is None:
            self.of(log, 0)
        self._stored_ends[log.id] = stored_end
        unclean = stored_end < log.written
        doubtful = damaged or (unclean and not log.durability.acks_wait)
        if not log.on_disk or doubtful:
            self._lost.add(log.id)
        if doubtful:
            for (log_id, _), state in self._partitions.items():
                if log_id == log.id:
                    state.producers.clear()

    def recover_moved(self, partition: Partition) -> None:
        """After all its logs were recovered: what they tell of each producer, as far as their ends can be trusted.

        A batch counts if the log it lies in still has it. A producer that was last seen before the end of a log that may
        have lost some is not known any more: it may have gone on there.
        """
        spans, topic_id = partition.spans, partition.topic.id
        current = self.of(spans[-1].log, topic_id)
        producers: dict[int, Producer] = {}
        for log in {span.log.id: span.log for span in spans}.values():
            producers = join(producers, self.of(log, topic_id).producers)
        known_from = max((span.limit for span in spans if span.log.id in self._lost), default=0)
        for producer_id, producer in list(producers.items()):
            producer.sent = [batch for batch in producer.sent if self._is_stored(partition, batch)]
            if known_from and (not producer.sent or producer.sent[-1].base_offset < known_from):
                del producers[producer_id]
        for span in spans:
            state = self.of(span.log, topic_id)
            state.producers, state.moved = producers, state is not current

    def _is_stored(self, partition: Partition, batch: Sent) -> bool:
        for span in partition.spans:
            if span.first <= batch.base_offset < span.limit:
                return batch.end_offset <= self._stored_ends[span.log.id]
        return True  # retention took its span

    def _scan(self, log: Log, data: memoryview, now_ms: int) -> None:
        at = 0
        for frame in frame_heads(data, log.id):
            start = at + FRAME_HEAD_SIZE
            at += frame.size
            if frame.kind != KIND_DATA or frame.origin != Origin.KAFKA or not frame.payload_size:
                continue
            state = self.of(log, frame.topic_id)
            if frame.base_offset < state.scanned_end:
                continue
            head = read_batch_head(data, start)
            if head.control:
                commit = _is_commit(data[start : start + frame.payload_size])
                state.end_transaction(
                    head.producer_id, head.producer_epoch, commit=commit, offset=frame.base_offset, now_ms=now_ms
                )
            else:
                state.add(head, frame.base_offset, frame.base_offset + frame.count, now_ms)

    def open_transactions(self) -> Iterator[tuple[int, int, int]]:
        """(log id, topic id, producer id) of each."""
        for (log_id, topic_id), state in self._partitions.items():
            for producer_id in state.open:
                yield log_id, topic_id, producer_id

    def _apply(self, key: bytes, value: bytes | None) -> None:
        log_id, topic_id = (int(part) for part in key.split(b"/"))
        if value is None:
            self._partitions.pop((log_id, topic_id), None)
        else:
            self._partitions[log_id, topic_id] = PartitionProducers.unpack(value)

    def _dump(self) -> Iterator[tuple[bytes, bytes]]:
        for log in self._logs.values():  # states that are taken after it know more, and say up to where
            self._partitions[log.id, FLOOR] = PartitionProducers(scanned_end=log.written)
        for key in list(self._partitions):
            state = self._partitions.get(key)
            if state is not None:
                yield _key(*key), state.pack()


def _key(log_id: int, topic_id: int) -> bytes:
    return f"{log_id}/{topic_id}".encode()


def state_key(log: Log, topic_id: int) -> tuple[int, int]:
    """A log of its own holds one topic; there the frames need not name it."""
    return (log.id, topic_id if log.index is not None else 0)


def _is_commit(marker: memoryview) -> bool:
    (record,) = decode_batch(marker, inflated_bytes_max=MARKER_BYTES_MAX)
    return bool(read_marker(record.key or b""))

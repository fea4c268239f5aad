"""The transaction coordinator: who may write under a transactional id, and what its open transaction touches.

    empty ──first partition──> ongoing ──end or time-out──> ending ──decision durable, markers written──> empty

The order that makes all or nothing hold:

1. the partitions of a transaction are journaled before (or with) its first record there;
2. to end it, all logs it wrote to are synced, then the decision is journaled and synced: that is the commit point;
3. offsets committed with it count from the decision on; each partition gets a marker, derived from it;
4. where the markers were written is journaled with the end, and forgotten once they are durable.

A start after a crash finds a decision without its end: the markers are written. A partition where the producer has since
begun its next transaction has its marker already, and another one would end that next one with it: records tell by their
stamps on which side of the decision they lie. It finds an end whose markers a power cut took from their logs: these are
written again, as they were decided. An open transaction in a log that no journaled transaction claims is aborted: its
journal entry was lost with the crash.

Clients of KIP-890 get a new epoch with each transaction, so that a late write of an older one is always fenced;
older clients keep theirs until they initialise again. Pure but for the journal; time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum, StrEnum, auto
from typing import Protocol

import msgspec

from mainstem.broker.state.journal import Entries, StateKeeper
from mainstem.log.gather import Ticket

EPOCH_MAX = 32_766
TIMEOUT_MS_MAX = 15 * 60_000
IDS_MAX = 100_000
IDLE_MS_MAX = 7 * 24 * 3_600_000
PARTITIONS_MAX = 10_000  # of one transaction

TopicPartition = tuple[str, int]


class TransactionFault(Enum):
    NONE = auto()
    CONCURRENT_TRANSACTIONS = auto()
    INVALID_PRODUCER_EPOCH = auto()
    INVALID_PRODUCER_ID_MAPPING = auto()
    INVALID_TRANSACTION_TIMEOUT = auto()
    INVALID_TXN_STATE = auto()
    PRODUCER_FENCED = auto()
    COORDINATOR_NOT_AVAILABLE = auto()


class TransactionState(StrEnum):
    """The words Kafka's tools show."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


ENDING = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class Transaction(msgspec.Struct):
    """One transactional id. `previous_epoch` lets a client repeat the end whose answer it lost, or that came without it."""

    id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: set[TopicPartition] = msgspec.field(default_factory=set)
    groups: set[str] = msgspec.field(default_factory=set)
    start_ms: int = -1
    update_ms: int = 0
    marker_producer_id: int = -1  # whose markers are due while ending
    marker_epoch: int = -1
    previous_producer_id: int = -1
    previous_epoch: int = -1
    decided_stamp: int = -1  # its records have smaller ones, all of its producer's later ones do not

    @property
    def commits(self) -> bool:
        return self.state is TransactionState.PREPARE_COMMIT


class MarkersOf(msgspec.Struct, frozen=True, array_like=True):
    """The markers of one ended transaction that may not be durable yet: partition, log id and offset of each."""

    producer_id: int
    epoch: int
    commit: bool
    places: list[tuple[TopicPartition, int, int]]

    def lies_in(self, log_ids: set[int]) -> bool:
        return any(log_id in log_ids for _, log_id, _ in self.places)


class Work(Protocol):
    """What the coordinator needs done in the world."""

    def sync_logs(self, partitions: set[TopicPartition], done: Callable[[], None]) -> None:
        """Call `done` once everything written so far to these partitions is durable."""

    def write_markers(self, transaction: Transaction, *, commit: bool) -> dict[TopicPartition, Ticket]:
        """Append a marker to each partition of the transaction."""

    def is_marked(self, at: TopicPartition, transaction: Transaction) -> bool:
        """After a crash: whether the producer has written there since the transaction was decided."""

    def write_marker_again(self, at: TopicPartition, log_id: int, offset: int, end: MarkersOf) -> Ticket | None:
        """After a crash: unless the marker at that offset is still there, or its log is gone."""

    def next_producer_id(self) -> int: ...

    def next_stamp(self) -> int: ...


class Transactions:
    KIND = "kafka-transaction"
    KIND_JOINED = "kafka-joined"  # a partition joined the open transaction: key = id 0x00 topic 0x00 partition
    KIND_MARKERS = "kafka-markers"  # key: u64 stamp of the first

    def __init__(self, journal: StateKeeper, work: Work, finish_offsets: Callable[[int, bool], None]) -> None:
        """`finish_offsets(producer id, commit)` settles the offsets that were sent with the transaction."""
        self.by_id: dict[str, Transaction] = {}
        self._journal = journal
        self._work = work
        self._finish_offsets = finish_offsets
        self._kept: dict[str, bytes] = {}  # as last journaled: a snapshot must not tell of a decision not yet made
        self._joined: set[str] = set()  # ids that partitions joined since they were kept
        self._undecided: list[Transaction] = []  # the decision could not be written; tried again with the next tick
        self._waiting: dict[str, list[Callable[[], None]]] = {}  # who waits for the end of an id's transaction
        self._markers: dict[bytes, MarkersOf] = {}
        journal.register(self.KIND, self._apply, self._dump, entries=Entries.COPIED)
        journal.register(self.KIND_JOINED, self._apply_joined, lambda: (), entries=Entries.COPIED, part_of=self.KIND)
        journal.register(self.KIND_MARKERS, self._apply_markers, self._dump_markers)

    # -- beginning -------------------------------------------------------------------------------------------------

    def initialise(
        self,
        transaction_id: str,
        timeout_ms: int,
        producer_id: int,
        epoch: int,
        now_ms: int,
        reply: Callable[[TransactionFault, int, int, Ticket | None], None],
    ) -> None:
        """A producer id and an epoch that fences all before it. An open transaction is aborted first."""
        if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            reply(TransactionFault.INVALID_TRANSACTION_TIMEOUT, -1, -1, None)
            return
        known = self.by_id.get(transaction_id)
        if known is None:
            if len(self.by_id) >= IDS_MAX:
                reply(TransactionFault.COORDINATOR_NOT_AVAILABLE, -1, -1, None)
                return
            known = Transaction(transaction_id, self._work.next_producer_id(), -1, timeout_ms)
            self.by_id[transaction_id] = known
        elif producer_id >= 0 and not self._may_reinitialise(known, producer_id, epoch):
            reply(TransactionFault.PRODUCER_FENCED, -1, -1, None)
            return
        if known.state is TransactionState.ONGOING:
            self._fence(known, now_ms)
        if known.state in ENDING:
            self._waiting.setdefault(transaction_id, []).append(
                lambda: self.initialise(transaction_id, timeout_ms, -1, -1, now_ms, reply)
            )
            return
        known.timeout_ms = timeout_ms
        self._bump(known)
        known.previous_epoch = epoch if producer_id >= 0 else -1
        known.state, known.update_ms = TransactionState.EMPTY, now_ms
        reply(TransactionFault.NONE, known.producer_id, known.epoch, self._keep(known))

    @staticmethod
    def _may_reinitialise(known: Transaction, producer_id: int, epoch: int) -> bool:
        """A client that recovers says who it was: the current producer, or the one whose answer was lost."""
        current = producer_id == known.producer_id and epoch == known.epoch
        repeated = producer_id in (known.producer_id, known.previous_producer_id) and epoch == known.previous_epoch
        return current or repeated

    def _bump(self, known: Transaction) -> None:
        known.previous_producer_id, known.previous_epoch = known.producer_id, known.epoch
        if known.epoch >= EPOCH_MAX:
            known.producer_id, known.epoch = self._work.next_producer_id(), 0
        else:
            known.epoch += 1

    def _fence(self, known: Transaction, now_ms: int) -> None:
        """Abort for someone else: the writer's epoch is used up with it."""
        if known.epoch < EPOCH_MAX:
            known.epoch += 1
        self._end(known, now_ms, commit=False)

    # -- taking part -----------------------------------------------------------------------------------------------

    def check(self, transaction_id: str, producer_id: int, epoch: int) -> TransactionFault:
        """Whether this producer may go on under this id."""
        known = self.by_id.get(transaction_id)
        if known is None or known.producer_id != producer_id:
            if known is not None and known.previous_producer_id == producer_id:
                return TransactionFault.PRODUCER_FENCED
            return TransactionFault.INVALID_PRODUCER_ID_MAPPING
        if known.epoch != epoch:
            return TransactionFault.PRODUCER_FENCED
        return TransactionFault.CONCURRENT_TRANSACTIONS if known.state in ENDING else TransactionFault.NONE

    def add(
        self,
        transaction_id: str,
        producer_id: int,
        epoch: int,
        now_ms: int,
        *,
        partitions: Iterable[TopicPartition] = (),
        group: str | None = None,
    ) -> tuple[TransactionFault, Ticket | None]:
        """Partitions or a group join the open transaction; the ticket must be kept before their records count."""
        fault = self.check(transaction_id, producer_id, epoch)
        if fault is not TransactionFault.NONE:
            return fault, None
        known = self.by_id[transaction_id]
        new = set(partitions) - known.partitions
        if len(known.partitions) + len(new) > PARTITIONS_MAX:
            return TransactionFault.INVALID_TXN_STATE, None
        begins = known.state is not TransactionState.ONGOING
        if not new and not begins and (group is None or group in known.groups):
            return TransactionFault.NONE, None
        if begins:
            known.state, known.start_ms = TransactionState.ONGOING, now_ms
            known.partitions, known.groups = set(), set()
        known.partitions |= new
        if group is not None:
            known.groups.add(group)
        known.update_ms = now_ms
        if begins or group is not None:
            return TransactionFault.NONE, self._keep(known)
        return TransactionFault.NONE, self._keep_joined(known, new)

    def takes(self, transaction_id: str, at: TopicPartition) -> bool:
        """Whether a record for that partition belongs to the open transaction."""
        known = self.by_id.get(transaction_id)
        return known is not None and known.state is TransactionState.ONGOING and at in known.partitions

    # -- ending ----------------------------------------------------------------------------------------------------

    def end(
        self,
        transaction_id: str,
        producer_id: int,
        epoch: int,
        now_ms: int,
        *,
        commit: bool,
        bump: bool,
        reply: Callable[[TransactionFault, int, int], None],
    ) -> None:
        """Answers once the decision is durable; with `bump` (KIP-890) the next transaction has a new epoch."""
        known = self.by_id.get(transaction_id)
        if known is not None and bump and self._is_over(known, producer_id, epoch):
            fault = self._repeat_fault(known, commit=commit)
            reply(fault, *((known.producer_id, known.epoch) if fault is TransactionFault.NONE else (-1, -1)))
            return
        fault = self.check(transaction_id, producer_id, epoch)
        if fault is TransactionFault.NONE:
            assert known is not None
            fault = self._end_fault(known, commit=commit, bump=bump)
        if fault is not TransactionFault.NONE:
            reply(fault, -1, -1)
            return
        assert known is not None
        if known.state is not TransactionState.ONGOING:
            if bump:  # the abort of nothing
                self._bump(known)
                known.state = TransactionState.COMPLETE_ABORT
                self._keep(known)
            reply(TransactionFault.NONE, known.producer_id, known.epoch)
            return
        self._end(known, now_ms, commit=commit, bump=bump, done=lambda: reply(fault, known.producer_id, known.epoch))

    @staticmethod
    def _is_over(known: Transaction, producer_id: int, epoch: int) -> bool:
        """Whether the producer means the transaction that ended last: it lost the answer, or time was up for it."""
        ended = (*ENDING, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
        return known.state in ended and (producer_id, epoch) == (known.previous_producer_id, known.previous_epoch)

    @staticmethod
    def _repeat_fault(known: Transaction, *, commit: bool) -> TransactionFault:
        if known.state in ENDING:
            return TransactionFault.CONCURRENT_TRANSACTIONS
        ended = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        return TransactionFault.NONE if known.state is ended else TransactionFault.INVALID_TXN_STATE

    @staticmethod
    def _end_fault(known: Transaction, *, commit: bool, bump: bool) -> TransactionFault:
        """Ending what was never begun: an old client's repeat of the same end is fine, an abort of nothing too."""
        if known.state is TransactionState.ONGOING:
            return TransactionFault.NONE
        ended = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        if (known.state is ended and not bump) or (not commit and bump):
            return TransactionFault.NONE
        return TransactionFault.INVALID_TXN_STATE

    def _end(
        self,
        known: Transaction,
        now_ms: int,
        *,
        commit: bool,
        bump: bool = False,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self._refresh_kept(known)
        known.state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        known.update_ms = now_ms
        known.marker_producer_id, known.marker_epoch = known.producer_id, known.epoch
        if bump:
            self._bump(known)
            if known.producer_id == known.marker_producer_id:  # the marker itself fences the older epoch
                known.marker_epoch = known.epoch
        self._waiting.setdefault(known.id, []).append(done)
        self._work.sync_logs(known.partitions, lambda: self._decide(known))

    def _decide(self, known: Transaction) -> None:
        known.decided_stamp = self._work.next_stamp()
        self._keep(known).wait(_Decision(self, known))

    def decided(self, known: Transaction, error: Exception | None) -> None:
        if error is None:
            self._complete(known)
        else:
            self._undecided.append(known)

    def _complete(self, known: Transaction) -> None:
        """The decision is durable: offsets count, markers are written, and the id is free for the next one."""
        commit = known.commits
        self._finish_offsets(known.marker_producer_id, commit)
        markers = self._work.write_markers(known, commit=commit)
        self._await_markers(known.marker_producer_id, known.marker_epoch, commit, markers)
        known.state = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        known.partitions, known.groups, known.start_ms = set(), set(), -1
        self._keep(known)
        for waiter in self._waiting.pop(known.id, []):
            waiter()

    def roll_forward(self) -> None:
        """After recovery: decisions whose end was not journaled get their markers."""
        for key, end in list(self._markers.items()):
            again = {at: self._work.write_marker_again(at, log_id, offset, end) for at, log_id, offset in end.places}
            self._await_markers(
                end.producer_id, end.epoch, end.commit, {at: one for at, one in again.items() if one is not None}
            )
            self._forget_markers(key)
        for known in list(self.by_id.values()):
            if known.state in ENDING:
                known.partitions = {at for at in known.partitions if not self._work.is_marked(at, known)}
                self._complete(known)

    def _await_markers(self, producer_id: int, epoch: int, commit: bool, markers: dict[TopicPartition, Ticket]) -> None:
        if not markers:
            return
        key = min(ticket.stamp for ticket in markers.values()).to_bytes(8, "big")
        places = [(at, ticket.log.id, ticket.base_offset) for at, ticket in markers.items()]
        end = self._markers[key] = MarkersOf(producer_id, epoch, commit, places)
        self._journal.put(self.KIND_MARKERS, key, msgspec.msgpack.encode(end))
        waiting = _Markers(self, key, len(markers))
        for ticket in markers.values():
            ticket.wait(waiting)

    def _forget_markers(self, key: bytes) -> None:
        if self._markers.pop(key, None) is not None:
            self._journal.put(self.KIND_MARKERS, key, None)

    def unkept_markers(self) -> Iterable[MarkersOf]:
        return self._markers.values()

    def markers_durable(self, key: bytes) -> None:
        self._forget_markers(key)

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        undecided, self._undecided = self._undecided, []
        for known in undecided:
            self._decide(known)
        for known in list(self.by_id.values()):
            if known.state is TransactionState.ONGOING and known.start_ms + known.timeout_ms <= now_ms:
                known.previous_producer_id, known.previous_epoch = known.producer_id, known.epoch  # it may start over
                self._fence(known, now_ms)
            elif known.state not in (*ENDING, TransactionState.ONGOING) and known.update_ms + IDLE_MS_MAX < now_ms:
                self._drop(known)

    def forget(self, start: str) -> Iterator[None]:
        """Ids that begin so: their tenant is gone, and with it every log that a marker could be written to."""
        for known in [one for one in self.by_id.values() if one.id.startswith(start)]:
            self._drop(known)
            yield

    def _drop(self, known: Transaction) -> None:
        del self.by_id[known.id]
        self._joined.discard(known.id)
        self._kept.pop(known.id, None)
        self._journal.put(self.KIND, known.id.encode(), None)

    def next_ms(self) -> int | None:
        open_ones = [t for t in self.by_id.values() if t.state is TransactionState.ONGOING]
        return min((known.start_ms + known.timeout_ms for known in open_ones), default=None)

    # -- journal ---------------------------------------------------------------------------------------------------

    def _keep(self, known: Transaction) -> Ticket:
        self._kept[known.id] = msgspec.msgpack.encode(known)
        self._joined.discard(known.id)
        return self._journal.put(self.KIND, known.id.encode(), _changed(known))

    def _keep_joined(self, known: Transaction, partitions: Iterable[TopicPartition]) -> Ticket | None:
        """However many it has already, one entry for each that is new."""
        self._joined.add(known.id)
        ticket = None
        for topic, partition in sorted(partitions):
            key = b"\0".join((known.id.encode(), topic.encode(), b"%d" % partition))
            ticket = self._journal.put(self.KIND_JOINED, key, b"")
        return ticket

    def _refresh_kept(self, known: Transaction) -> None:
        if known.id in self._joined:
            self._joined.discard(known.id)
            self._kept[known.id] = msgspec.msgpack.encode(known)

    def _apply_joined(self, key: bytes, value: bytes | None) -> None:
        transaction_id, topic, partition = key.decode().rsplit("\0", 2)
        known = self.by_id.get(transaction_id)
        if known is not None:
            known.partitions.add((topic, int(partition)))
            self._joined.add(known.id)

    def _apply(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.by_id.pop(key.decode(), None)
            self._kept.pop(key.decode(), None)
            self._joined.discard(key.decode())
            return
        known = _read(value)
        self.by_id[known.id] = known
        self._kept[known.id] = msgspec.msgpack.encode(known)
        self._joined.discard(known.id)
        if known.state in ENDING:
            self._finish_offsets(known.marker_producer_id, known.commits)

    def _dump(self) -> Iterator[tuple[bytes, bytes]]:
        for transaction_id in list(self._joined):
            self._refresh_kept(self.by_id[transaction_id])
        return ((transaction_id.encode(), kept) for transaction_id, kept in self._kept.copy().items())

    def _apply_markers(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._markers.pop(key, None)
        else:
            self._markers[key] = msgspec.msgpack.decode(value, type=MarkersOf)

    def _dump_markers(self) -> Iterator[tuple[bytes, bytes]]:
        for key, end in list(self._markers.items()):
            if key in self._markers:
                yield key, msgspec.msgpack.encode(end)


class _Changed(Transaction, array_like=True):
    """As an entry of the journal: without the names of its fields, which a snapshot (and format 1) has."""


def _changed(known: Transaction) -> bytes:
    return msgspec.msgpack.encode(_Changed(*msgspec.structs.astuple(known)))


def _read(value: bytes) -> Transaction:
    if value[0] & 0xF0 == 0x90 or value[0] in (0xDC, 0xDD):  # an array
        return Transaction(*msgspec.structs.astuple(msgspec.msgpack.decode(value, type=_Changed)))
    return msgspec.msgpack.decode(value, type=Transaction)


class _Decision:
    """Waits until a decision is durable."""

    __slots__ = ("_known", "_owner")

    def __init__(self, owner: Transactions, known: Transaction) -> None:
        self._owner, self._known = owner, known

    def released(self, ticket: Ticket) -> None:
        self._owner.decided(self._known, ticket.error)


class _Markers:
    """Waits until all markers of a transaction are durable."""

    __slots__ = ("_key", "_left", "_owner")

    def __init__(self, owner: Transactions, key: bytes, left: int) -> None:
        self._owner, self._key, self._left = owner, key, left

    def released(self, ticket: Ticket) -> None:
        if ticket.error is None:  # else they are still owed, and written at the next start
            self._left -= 1
            if not self._left:
                self._owner.markers_durable(self._key)

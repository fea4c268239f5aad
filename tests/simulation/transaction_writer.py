"""A producer with transactions, as the Kafka adapter serves it, and what a reader of committed records may see of them.

expected of it    of a transaction whose commit was answered every record is seen, once, in order
                  of one that was aborted, or never ended, none
                  of one whose answer never came all or none, and the same ever after
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from mainstem.broker.broker import Broker
from mainstem.broker.topics.topic import Partition
from mainstem.broker.topics.views import View, ViewSlot
from mainstem.broker.transactions.transactions import TransactionFault
from mainstem.codec.batch import BatchBuilder, read_batch_head
from mainstem.log.gather import Ticket
from mainstem.model.origin import Origin
from tests.simulation.machine import Machine

NAME, TOPIC = "writer", b"txn/1"
AT = ("/\x01txn.1", 0)
TRANSACTIONAL = 0x10  # of a batch's attributes
TIMEOUT_MS = 60_000
READ_BYTES = 1 << 20


@dataclass(slots=True)
class Written:
    """One transaction: its values, and how it ended as far as its producer knows."""

    values: list[bytes] = field(default_factory=list)
    asked: bool | None = None  # to commit, or to abort
    answered: bool = False


class TransactionWriter:
    def __init__(self, machine: Machine, rng: random.Random) -> None:
        self.machine, self.rng = machine, rng
        self.who: tuple[int, int] | None = None  # producer id and epoch
        self.asking = False
        self.sequence = 0
        self.open: Written | None = None
        self.ended: list[Written] = []

    def declare(self) -> None:
        broker = self.machine.broker
        assert broker is not None
        policy = self.machine.policy.with_changes({"layout": "dedicated", "retention_ms": -1})
        task = self.machine.loop.create_task(broker.declare_topic(broker.namespace("/"), TOPIC, policy))
        for _ in range(20):
            self.machine.store.commit()
            self.machine.loop.settle()
        assert task.done() and TOPIC in broker.namespace("/").topics

    def lose(self) -> None:
        """The broker is gone, with what it would have answered."""
        self.who, self.asking = None, False
        self._end()

    def _end(self) -> None:
        if self.open is not None:
            self.ended.append(self.open)
        self.open = None

    # -- steps

    def act(self) -> None:
        if self.asking:
            return
        if self.who is None:
            self.begin_session()
        elif self.open is None or self.rng.random() < 0.5:
            self.write()
        else:
            self.end(commit=self.rng.random() < 0.6)

    def commit(self) -> bool:
        """One step towards it; True if that was asked for."""
        if self.who is None:
            self.begin_session()
        elif self.open is None:
            self.write()
        else:
            self.end(commit=True)
            return True
        return False

    def begin_session(self) -> None:
        """A new epoch: whatever was open is aborted first."""
        coordinator = self._broker().coordinator
        self.asking = True

        def reply(fault: TransactionFault, producer_id: int, epoch: int, ticket: Ticket | None) -> None:
            assert fault is TransactionFault.NONE, fault
            self.who, self.sequence, self.asking = (producer_id, epoch), 0, False

        coordinator.transactions.initialise(NAME, TIMEOUT_MS, -1, -1, coordinator.now_ms(), reply)

    def write(self) -> None:
        """Some records, in one batch."""
        coordinator, partition, who = self._broker().coordinator, self._partition(), self.who
        assert who is not None
        fault, _ = coordinator.transactions.add(NAME, *who, coordinator.now_ms(), partitions=[AT])
        assert fault is TransactionFault.NONE, fault
        self.open = self.open or Written()
        number, builder = len(self.ended), BatchBuilder()
        count = self.rng.randint(1, 4)
        for _ in range(count):
            value = b"%d %d" % (number, len(self.open.values))
            self.open.values.append(value)
            builder.add(None, value, (), coordinator.now_ms(), 0)
        batch = builder.seal_batch(0, 0, TRANSACTIONAL, *who, self.sequence)
        self.sequence += count
        head = read_batch_head(batch, 0)
        appended = partition.log.append_batch(
            batch, head, partition.route, origin=Origin.KAFKA, topic_id=partition.topic.id
        )
        state, base = coordinator.producers.of(partition.log, partition.topic.id), appended.ref.base_offset
        state.add(head, base, base + count, coordinator.now_ms())
        coordinator.producers.count_bytes(partition.log, partition.topic.id, state, head.size)

    def end(self, *, commit: bool) -> None:
        coordinator, written, who = self._broker().coordinator, self.open, self.who
        assert written is not None and who is not None
        written.asked, self.asking = commit, True

        def reply(fault: TransactionFault, producer_id: int, epoch: int) -> None:
            assert fault is TransactionFault.NONE, fault
            written.answered = written.answered or not self.machine.is_cut
            if self.open is written:
                self.asking = False
                self._end()

        coordinator.transactions.end(NAME, *who, coordinator.now_ms(), commit=commit, bump=False, reply=reply)

    # -- judging

    def check(self) -> None:
        """After it has begun another session: nothing of its own is open any more."""
        reader, seen, at = self._reader(), list[bytes](), 0
        while at < reader.stable_offset:
            records, after = reader.records(at, READ_BYTES)
            seen += [record.value or b"" for record in records]
            if after <= at:
                break
            at = after
        for number, written in enumerate(self.ended):
            mine = [value for value in seen if value.startswith(b"%d " % number)]
            if not mine and not (written.answered and written.asked):
                written.asked = False  # it is aborted, from now on for good
                continue
            assert written.asked, f"transaction {number} was not committed, and {mine} is seen"
            assert mine == written.values, f"transaction {number} is {written.values}, {mine} is seen"
            written.answered = True
        numbers = [int(value.split()[0]) for value in seen]
        assert numbers == sorted(numbers), f"transactions are seen out of order: {numbers}"

    def _broker(self) -> Broker:
        assert self.machine.broker is not None
        return self.machine.broker

    def _partition(self) -> Partition:
        return self._broker().namespace("/").topics[TOPIC].partitions[0]

    def _reader(self) -> ViewSlot:
        return ViewSlot(View(self._broker().namespace("/"), 0, b"", TOPIC, None, {}, 0), self._partition().log)

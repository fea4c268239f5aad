"""The transaction coordinator's hands: waiting until logs are synced, and writing markers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from mainstem.broker.topics.topic import Partition, Topic
from mainstem.broker.transactions.producers import state_key
from mainstem.broker.transactions.transactions import MarkersOf, Transaction, TransactionState
from mainstem.codec.batch import read_frame_head
from mainstem.log.gather import Ticket
from mainstem.metadata.rows import Sequence
from mainstem.model.topic import topic_of_kafka

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.transactions.coordinator import Coordinator

logger = logging.getLogger("mainstem.broker")


class MarkerWork:
    def __init__(self, broker: Broker, coordinator: Coordinator) -> None:
        self._broker = broker
        self._coordinator = coordinator

    def next_producer_id(self) -> int:
        return self._broker.store.next_id(Sequence.PRODUCER)

    def next_stamp(self) -> int:
        return self._broker.stamps.next

    def partition(self, at: tuple[str, int]) -> Partition | None:
        """`at` names the namespace with the topic, as Kafka spells it."""
        owner, _, name = at[0].rpartition("\x01")
        namespace = self._broker.namespaces.get(owner)
        canonical = topic_of_kafka(name)
        if namespace is None or canonical in namespace.views:
            return None
        topic = namespace.find_topic(canonical)
        return topic.partitions[at[1]] if topic is not None and 0 <= at[1] < len(topic.partitions) else None

    def takes_part(self, transaction_id: str, topic: Topic) -> bool:
        """Whether the open transaction of that id has partitions of the topic."""
        known = self._coordinator.transactions.by_id.get(transaction_id)
        return known is not None and self._touches(known, topic)

    def transaction_in(self, topic: Topic) -> str | None:
        """The id of a transaction that is open in the topic, or that ended and whose markers are not durable yet."""
        transactions = self._coordinator.transactions
        for known in transactions.by_id.values():
            if known.partitions and self._touches(known, topic):
                return known.id
        logs = {partition.log.id for partition in topic.partitions}
        return next(
            (f"of producer {end.producer_id}" for end in transactions.unkept_markers() if end.lies_in(logs)), None
        )

    def _touches(self, known: Transaction, topic: Topic) -> bool:
        found = (self.partition(at) for at in known.partitions)
        return any(partition is not None and partition.topic is topic for partition in found)

    def sync_logs(self, partitions: set[tuple[str, int]], done: Callable[[], None]) -> None:
        logs = {partition.log for at in partitions if (partition := self.partition(at)) is not None}
        waiting = len(logs)
        if not waiting:
            done()
            return

        def one_is_stable() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                done()

        for log in logs:
            self._coordinator.watches.of(log).when_stable(log, log.next_offset, one_is_stable)

    def write_markers(self, transaction: Transaction, *, commit: bool) -> dict[tuple[str, int], Ticket]:
        producer_id, epoch = transaction.marker_producer_id, transaction.marker_epoch
        found = [(at, self.partition(at)) for at in sorted(transaction.partitions)]
        return {
            at: self.write_marker(partition, producer_id, epoch, commit=commit)
            for at, partition in found
            if partition is not None
        }

    def is_marked(self, at: tuple[str, int], transaction: Transaction) -> bool:
        partition = self.partition(at)
        if partition is None:
            return False
        log = partition.log
        first = self._coordinator.producers.of(log, partition.topic.id).open.get(transaction.marker_producer_id)
        piece = log.read_in_thread(first, 1) if first is not None and transaction.decided_stamp >= 0 else None
        return piece is not None and read_frame_head(piece.data, 0, log.id).stamp >= transaction.decided_stamp

    def write_marker_again(self, at: tuple[str, int], log_id: int, offset: int, end: MarkersOf) -> Ticket | None:
        partition = self.partition(at)
        if partition is None or partition.log.id != log_id or not partition.log.on_disk:
            return None
        if offset < partition.log.engine.stat().end_offset:
            return None
        logger.warning("writing a marker of producer %d again that a power cut took", end.producer_id)
        return self.write_marker(partition, end.producer_id, end.epoch, commit=end.commit)

    def write_marker(self, partition: Partition, producer_id: int, epoch: int, *, commit: bool) -> Ticket:
        """With COMMIT, readers without offsets (MQTT, AMQP) are shown the transaction's records at the marker."""
        log = partition.log
        state = self._coordinator.producers.of(log, partition.topic.id)
        first = state.open.get(producer_id, log.next_offset)
        appended = log.append_marker(
            partition.route,
            commit=commit,
            producer_id=producer_id,
            producer_epoch=epoch,
            first_offset=first,
            count=log.next_offset - first,
        )
        state.end_transaction(
            producer_id, epoch, commit=commit, offset=appended.ref.base_offset, now_ms=self._coordinator.now_ms()
        )
        return appended.ticket

    def abort_unclaimed(self) -> None:
        """After recovery: a transaction in a log that no journaled one claims lost its journal entry with the crash."""
        claimed: set[tuple[int, int, int]] = set()
        epochs: dict[int, int] = {}
        for transaction in self._coordinator.transactions.by_id.values():
            epochs[transaction.producer_id] = transaction.epoch
            if transaction.state is TransactionState.ONGOING:
                for at in transaction.partitions:
                    partition = self.partition(at)
                    if partition is not None:
                        claimed.add((*state_key(partition.log, partition.topic.id), transaction.producer_id))
        partitions = {
            state_key(partition.log, topic.id): partition
            for namespace in self._broker.namespaces.values()
            for topic in namespace.topics.values()
            for partition in topic.partitions
        }
        for log_id, topic_id, producer_id in list(self._coordinator.producers.open_transactions()):
            partition = partitions.get((log_id, topic_id))
            if partition is None or (log_id, topic_id, producer_id) in claimed:
                continue
            state = self._coordinator.producers.of(partition.log, topic_id)
            known = state.producers.get(producer_id)
            epoch = known.epoch if known is not None else epochs.get(producer_id, 0)
            logger.warning("aborting a transaction of producer %d that a crash left open", producer_id)
            self.write_marker(partition, producer_id, epoch, commit=False)

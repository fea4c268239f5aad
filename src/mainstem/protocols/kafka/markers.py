"""The transaction coordinator's hands: waiting until logs are synced, and writing markers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from mainstem.broker.producers import state_key
from mainstem.broker.topics import Partition
from mainstem.broker.transactions import Transaction, TransactionState
from mainstem.metadata.rows import Sequence

if TYPE_CHECKING:
    from mainstem.protocols.kafka.service import KafkaService

logger = logging.getLogger("mainstem.kafka")


class MarkerWork:
    def __init__(self, service: KafkaService) -> None:
        self._service = service

    def next_producer_id(self) -> int:
        return self._service.broker.store.next_id(Sequence.PRODUCER)

    def partition(self, at: tuple[str, int]) -> Partition | None:
        """`at` names the namespace with the topic, as `transactional_topic` makes it."""
        owner, _, name = at[0].rpartition("\x01")
        namespace = self._service.broker.namespaces.get(owner)
        found = self._service.catalog(namespace).find(name) if namespace is not None else None
        return found.partition(at[1]) if found is not None else None

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
            self._service.watches.of(log).when_stable(log, log.next_offset, one_is_stable)

    def write_markers(self, transaction: Transaction, *, commit: bool) -> None:
        for at in sorted(transaction.partitions):
            partition = self.partition(at)
            if partition is not None:
                self.write_marker(partition, transaction.marker_producer_id, transaction.marker_epoch, commit=commit)

    def write_marker(self, partition: Partition, producer_id: int, epoch: int, *, commit: bool) -> None:
        """With COMMIT, readers without offsets (MQTT, AMQP) are shown the transaction's records at the marker."""
        log, service = partition.log, self._service
        state = service.producers.of(log, partition.topic.id)
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
            producer_id, epoch, commit=commit, offset=appended.ref.base_offset, now_ms=service.now_ms()
        )

    def abort_unclaimed(self) -> None:
        """After recovery: a transaction in a log that no journaled one claims lost its journal entry with the crash."""
        claimed: set[tuple[int, int, int]] = set()
        epochs: dict[int, int] = {}
        for transaction in self._service.transactions.by_id.values():
            epochs[transaction.producer_id] = transaction.epoch
            if transaction.state is TransactionState.ONGOING:
                for at in transaction.partitions:
                    partition = self.partition(at)
                    if partition is not None:
                        claimed.add((*state_key(partition.log, partition.topic.id), transaction.producer_id))
        partitions = {
            state_key(partition.log, topic.id): partition
            for namespace in self._service.broker.namespaces.values()
            for topic in namespace.topics.values()
            for partition in topic.partitions
        }
        for log_id, topic_id, producer_id in list(self._service.producers.open_transactions()):
            partition = partitions.get((log_id, topic_id))
            if partition is None or (log_id, topic_id, producer_id) in claimed:
                continue
            state = self._service.producers.of(partition.log, topic_id)
            known = state.producers.get(producer_id)
            epoch = known.epoch if known is not None else epochs.get(producer_id, 0)
            logger.warning("aborting a transaction of producer %d that a crash left open", producer_id)
            self.write_marker(partition, producer_id, epoch, commit=False)

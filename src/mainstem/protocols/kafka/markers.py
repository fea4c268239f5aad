"""The transaction coordinator's hands: waiting until logs are synced, writing markers, showing what was committed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from mainstem.broker.topics import Partition
from mainstem.broker.transactions import Transaction, TransactionState
from mainstem.codec.batch import FRAME_HEAD_SIZE, KIND_DATA, frame_heads, read_batch_head
from mainstem.codec.control import kafka_marker_batch
from mainstem.metadata.rows import Sequence
from mainstem.model.origin import Origin

if TYPE_CHECKING:
    from mainstem.log.log import Log
    from mainstem.protocols.kafka.service import KafkaService

logger = logging.getLogger("mainstem.kafka")

SHOW_BYTES = 1 << 20  # of a committed transaction, read per turn of the loop


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
        log, topic_id, now_ms = partition.log, partition.topic.id, self._service.now_ms()
        batch = kafka_marker_batch(0, commit=commit, producer_id=producer_id, producer_epoch=epoch, time_ms=now_ms)
        head = read_batch_head(batch)
        appended = log.append_batch(batch, head, partition.route, origin=Origin.KAFKA, topic_id=topic_id)
        offset = appended.ref.base_offset
        state = self._service.producers.of(log.id, topic_id)
        first = state.end_transaction(producer_id, epoch, commit=commit, offset=offset, now_ms=now_ms)
        if first is not None and commit:
            self._service.watches.of(log).when_stable(
                log, offset + 1, lambda: self._show(partition, log, producer_id, first, offset)
            )

    def _show(self, partition: Partition, log: Log, producer_id: int, first: int, end: int) -> None:
        """MQTT and AMQP read committed records: they are pushed now, a piece per turn."""
        dispatcher = self._service.broker.dispatcher
        piece = log.read(first, SHOW_BYTES, end)
        if piece is None:
            return
        at = 0
        for frame in frame_heads(piece.data, log.id):
            batch = piece.data[at + FRAME_HEAD_SIZE : at + frame.size]
            at += frame.size
            if frame.kind != KIND_DATA or frame.origin != Origin.KAFKA or not frame.payload_size:
                continue
            head = read_batch_head(batch)
            if head.producer_id == producer_id and head.transactional and not head.control:
                dispatcher.deliver_batch(
                    bytes(batch), partition.route, log, frame.origin, frame.base_offset, frame.stamp
                )
        self._service.ticker.request()
        if piece.end_offset < end:
            self._service.later(0, lambda: self._show(partition, log, producer_id, piece.end_offset, end))

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
                        claimed.add((partition.log.id, partition.topic.id, transaction.producer_id))
        partitions = {
            (partition.log.id, topic.id): partition
            for namespace in self._service.broker.namespaces.values()
            for topic in namespace.topics.values()
            for partition in topic.partitions
        }
        for log_id, topic_id, producer_id in list(self._service.producers.open_transactions()):
            partition = partitions.get((log_id, topic_id))
            if partition is None or (log_id, topic_id, producer_id) in claimed:
                continue
            state = self._service.producers.of(log_id, topic_id)
            known = state.producers.get(producer_id)
            epoch = known.epoch if known is not None else epochs.get(producer_id, 0)
            logger.warning("aborting a transaction of producer %d that a crash left open", producer_id)
            self.write_marker(partition, producer_id, epoch, commit=False)

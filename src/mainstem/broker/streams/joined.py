"""A JetStream consumer that takes from a queue, beside consumers of any protocol: `mainstem-queue: NAME` in its metadata.

It has no cursor of its own: what is ready, leased, given up or dead is the queue's, and so are lock time and attempts. It
names a message by its stamp, the queue's position, which every ack's subject has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainstem.broker.queues.queue import Outcome, Queue, Taken
from mainstem.broker.streams.consumer import Consumer, Delivered
from mainstem.model.record import Record

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream
    from mainstem.log.gather import Ticket

QUEUE = "mainstem-queue"  # in a consumer's metadata
RETRY_S = 0.05  # where the queue has something and is still reading it


def queue_name(config: dict[str, Any]) -> str:
    """The queue that a consumer joins; empty: it is one of its own."""
    return str((config.get("metadata") or {}).get(QUEUE, ""))


def make_consumer(
    stream: Stream, name: str, consumer_id: int, config: dict[str, Any], created_ns: int, start: int
) -> Consumer:
    kind = JoinedConsumer if queue_name(config) else Consumer
    return kind(stream, name, consumer_id, config, created_ns, start)


class JoinedConsumer(Consumer):
    def __init__(
        self, stream: Stream, name: str, consumer_id: int, config: dict[str, Any], created_ns: int, start: int
    ) -> None:
        super().__init__(stream, name, consumer_id, config, created_ns, start)
        self._queue: Queue | None = None
        self._next: Taken | None = None  # leased, and not delivered yet
        self._mine: set[int] = set()  # delivered positions

    @property
    def queue(self) -> Queue | None:
        """None: it was deleted. One of the same name that is made later takes its place."""
        if self._queue is None or self._queue.deleted:
            queues = self.stream.service.broker.queues.of(self.stream.namespace)
            self._queue = queues.find(queue_name(self.config))
            if self._queue is not None:
                self._queue.note_puller(self)
        return self._queue

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def ack_pending(self) -> int:
        queue = self.queue
        self._mine = set(queue.held_by(self, self._mine)) if queue is not None else set()
        return len(self._mine)

    @property
    def redelivered(self) -> int:
        return 0

    @property
    def pending(self) -> int:
        return self.queue.ready if self.queue is not None else 0

    @property
    def ack_floor(self) -> tuple[int, int]:
        return 0, 0

    def has_ready(self) -> bool:
        return self.queue is not None and self.queue.ready > 0

    def watch(self, callback: Callable[[], None]) -> None:
        queue, loop = self.queue, self.stream.service.broker.ticker.loop
        if queue is None or self.room() <= 0:  # an ack wakes it, or the end of a lock
            loop.call_later((queue.settings.lock_ms if queue is not None else 1_000) / 1_000, callback)
        elif queue.ready:
            loop.call_later(RETRY_S, callback)
        else:
            queue.watch(callback)

    # -- delivering ------------------------------------------------------------------------------------------------

    def peek(self) -> Record | None:
        queue = self.queue
        if self._next is None and queue is not None and queue.ready and self.room() > 0:
            self._next = next(iter(queue.acquire(self, 1)), None)
        return self._next.record if self._next is not None else None

    def put_back(self) -> None:
        taken, self._next = self._next, None
        if taken is not None and self.queue is not None:
            self.queue.settle([taken.position], Outcome.UNTOUCHED)

    def take(self, record: Record) -> Delivered:
        taken, self._next = self._next, None
        assert taken is not None and taken.record is record
        self._mine.add(taken.position)
        self.consumer_seq += 1
        self.delivered, self.delivered_ns = record.offset + 1, self.stream.service.now_ns()
        deliveries = max(taken.attempts, int(taken.redelivered)) + 1
        return Delivered(record, self.consumer_seq, deliveries, self.pending)

    # -- settling --------------------------------------------------------------------------------------------------

    def _end(self, stamp: int, outcome: Outcome, delay_ms: int = 0) -> Ticket | None:
        queue = self.queue
        held = queue.held_by(self, [stamp]) if queue is not None else []
        self._mine.discard(stamp)
        if queue is None or not held:
            return None
        if outcome is Outcome.ACK:
            self.acked_ns = self.stream.service.now_ns()
        ticket = queue.settle(held, outcome, delay_ms=delay_ms)
        self.on_ready()
        return ticket

    def ack(self, seq: int, *, stamp: int = 0) -> Ticket | None:
        return self._end(stamp, Outcome.ACK)

    def nak(self, seq: int, delay_ms: int = 0, *, stamp: int = 0) -> Ticket | None:
        return self._end(stamp, Outcome.RELEASE, delay_ms)

    def term(self, seq: int, *, stamp: int = 0) -> Ticket | None:
        return self._end(stamp, Outcome.REJECT)

    def progress(self, seq: int, *, stamp: int = 0) -> None:
        if self.queue is not None:
            self.queue.renew(self.queue.held_by(self, [stamp]))

    def let_go(self) -> None:
        """It is deleted: others may have what it held."""
        self.put_back()
        if self.queue is not None and (held := self.queue.held_by(self, self._mine)):
            self.queue.settle(sorted(held), Outcome.RELEASE)
        self._mine.clear()

    def recover(self) -> None:
        """The queue ended all its leases."""

"""A worker that pulls from a durable queue, acknowledges some, gives some back, and judges what it is given."""

from __future__ import annotations

import random
from typing import Any

from mainstem.broker.queues.bindings import ANYTHING, Reach
from mainstem.broker.queues.queue import Outcome, Queue, Taken
from mainstem.broker.queues.settings import QueueSettings
from mainstem.log.gather import Ticket
from tests.simulation.machine import Machine

QUEUE = "work"


class QueueWorker:
    def __init__(self, machine: Machine, rng: random.Random, topic_filter: bytes) -> None:
        self.machine, self.rng, self.filter = machine, rng, topic_filter
        self.held: list[Taken] = []
        self.seen: set[bytes] = set()
        self.settling: set[bytes] = set()  # acknowledged, the broker has not said that it is kept
        self.settled: set[bytes] = set()
        self.excused: set[bytes] = set()  # given out before they were durable, and a power cut took them

    def is_exact(self, value: bytes) -> bool:
        """Published with QoS 2, so that it is stored once; with QoS 1 a repeated publish is another record."""
        return value.startswith(b"a/1 ") and value not in self.excused

    def declare(self) -> None:
        queues = self._queues()
        if queues.find(QUEUE) is None:
            written = queues.declare(QUEUE, QueueSettings(), reaches=[Reach(ANYTHING, self.filter)])[1]
            assert written is not None
            self.machine.store.commit()
            written.result()

    def _queues(self) -> Any:
        assert self.machine.broker is not None
        return self.machine.broker.queues.of(self.machine.broker.namespace("/"))

    @property
    def queue(self) -> Queue:
        queue: Queue = self._queues().get(QUEUE)
        return queue

    def lose(self) -> None:
        """Its connection, or the broker, is gone: what it held goes back."""
        self.held = []

    def act(self, *, eager: bool = False) -> None:
        if eager or self.rng.random() < 0.7:
            for taken in self.queue.acquire(self, self.rng.randint(1, 5)):
                value = taken.record.value or b""
                assert value not in self.settled or not self.is_exact(value), (
                    f"the queue gave {value!r} again after its ack was kept"
                )
                if value in self.seen:
                    assert taken.redelivered or not self.is_exact(value), (
                        f"the queue gave {value!r} again without saying so"
                    )
                self.seen.add(value)
                self.held.append(taken)
        count = len(self.held) if eager else self.rng.randint(0, len(self.held))
        for _ in range(count):
            taken = self.held.pop(self.rng.randrange(len(self.held)))
            if not eager and self.rng.random() < 0.2:
                self.queue.settle([taken.position], Outcome.RELEASE)
                continue
            value = taken.record.value or b""
            self.settling.add(value)
            ticket = self.queue.settle([taken.position], Outcome.ACK)
            assert ticket is not None
            ticket.wait(_Kept(self, value))

    def kept(self, value: bytes) -> None:
        if not self.machine.is_cut:
            self.settled.add(value)

    def check(self, expected: set[bytes]) -> None:
        missing = expected - self.seen
        assert not missing, f"the queue never gave {sorted(missing)[:5]}"
        strange = self.seen - expected
        assert not strange, f"the queue gave {sorted(strange)[:5]}, which nobody published"
        queue = self.queue
        assert (queue.ready, queue.unacked) == (0, 0), f"{queue.ready} ready, {queue.unacked} unacked of nothing"


class _Kept:
    def __init__(self, worker: QueueWorker, value: bytes) -> None:
        self._worker, self._value = worker, value

    def released(self, ticket: Ticket) -> None:
        if ticket.stable:
            self._worker.kept(self._value)

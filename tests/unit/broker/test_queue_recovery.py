"""A queue after a crash owes what its last checkpoint counted and what was written since."""

from __future__ import annotations

import shutil
from pathlib import Path

from mainstem.broker.broker import Broker
from mainstem.broker.queues.bindings import ANYTHING, Reach
from mainstem.broker.queues.queue import Outcome, Queue
from mainstem.broker.queues.settings import QueueSettings
from mainstem.log.retention import Holds
from mainstem.model.clock import ManualClock
from tests.unit.broker.kit import DAY_MS, durable, running


def queue_of(broker: Broker) -> Queue:
    return broker.queues.of(broker.namespace("/")).get("q")


async def declared(broker: Broker) -> Queue:
    queue, written = broker.queues.of(broker.namespace("/")).declare(
        "q", QueueSettings(), reaches=[Reach(ANYTHING, b"q/#")]
    )
    assert written is not None
    await written
    return queue


async def publish(broker: Broker, first: int, count: int) -> None:
    for n in range(first, first + count):
        ticket = broker.namespace("/").publish(b"q/%d" % (n % 3), b"%d" % n)
        broker.ticker.tick()
    await durable(ticket)


def all_of(queue: Queue) -> list[bytes | None]:
    found: list[bytes | None] = []
    while taken := queue.acquire(queue, 7):
        found += [one.record.value for one in taken]
    return found


async def test_what_was_counted_before_and_after_the_checkpoint_is_owed(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data) as broker:
        queue = await declared(broker)
        await publish(broker, 0, 20)
        queue.apply_events()
        ticket = broker.queues.journal_changes(queue)
        assert ticket is not None
        await durable(ticket)
        await publish(broker, 20, 5)
        shutil.copytree(data, copy)  # what a kill leaves
    async with running(copy) as broker:
        assert all_of(queue_of(broker)) == [b"%d" % n for n in range(25)]


async def test_what_a_queue_owes_outlives_retention_a_restart_and_the_topic_index(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS) as broker:
        queue = await declared(broker)
        await publish(broker, 0, 20)
        done = queue.acquire(queue, 5)
        ticket = queue.settle([one.position for one in done], Outcome.ACK)
        assert ticket is not None
        await durable(ticket)
        stem = broker.namespace("/").stem(broker.options.defaults)
        stem.engine.roll()
        clock.advance_ms(2 * DAY_MS)
        await publish(broker, 20, 1)
        await broker.snapshot()
        await broker.maintenance.round()
        assert stem.start_offset > 0, "streams moved on"
        assert broker.maintenance.holds_of(stem).from_stamp < Holds().from_stamp
        index = broker.logs.path_of(stem.id) / "topics"
    for file in index.iterdir():
        file.unlink()  # it is derived: the next start builds it again, also of what is only held
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS) as broker:
        assert all_of(queue_of(broker)) == [b"%d" % n for n in range(5, 21)]

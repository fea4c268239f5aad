"""A queue after a crash owes what its last checkpoint counted and what was written since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mainstem.broker.broker import Broker
from mainstem.broker.queues.bindings import ANYTHING, NOW, Reach
from mainstem.broker.queues.queue import Outcome, Queue
from mainstem.broker.queues.settings import QueueSettings
from mainstem.log.retention import Holds
from mainstem.model.clock import ManualClock
from tests.live_copies import copy_live
from tests.unit.broker.kit import DAY_MS, durable, running, until


def queue_of(broker: Broker) -> Queue:
    return broker.queues.of(broker.namespace("/")).get("q")


async def declared(broker: Broker) -> Queue:
    queue, written = broker.queues.of(broker.namespace("/")).declare(
        "q", QueueSettings(), reaches=[Reach(ANYTHING, b"q/#")]
    )
    assert written is not None
    await written
    return queue


async def declared_with_dead_letters(broker: Broker) -> tuple[Queue, Queue]:
    """The queue, and the queue of its dead letters."""
    queues = broker.queues.of(broker.namespace("/"))
    dead, written = queues.declare("dead", QueueSettings(), reaches=[queues.exchanges.default_reach("dead", NOW)])
    settings = QueueSettings(dead_letter_exchange="", dead_letter_key="dead")
    queue, _ = queues.declare("q", settings, reaches=[Reach(ANYTHING, b"q/#")])
    assert written is not None
    await written
    return queue, dead


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
        copy_live(data, copy)  # what a kill leaves
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


async def test_a_dead_letter_that_was_written_before_a_crash_is_not_written_again(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data) as broker:
        queue, dead = await declared_with_dead_letters(broker)
        await publish(broker, 0, 6)
        taken = queue.acquire(queue, 4)
        settled: list[int] = []

        def crash(level: Any, positions: list[int]) -> None:
            """Where a kill would come: the letters are durable, their sources not yet settled."""
            settled.extend(positions)

        queue.dead_lettered = crash  # type: ignore[method-assign]
        queue.settle([one.position for one in taken[:3]], Outcome.REJECT)
        await until(lambda: len(settled) == 3)
        copy_live(data, copy)
    async with running(copy) as broker:
        queue = queue_of(broker)
        dead = broker.queues.of(broker.namespace("/")).get("dead")
        assert all_of(dead) == [b"0", b"1", b"2"]
        assert all_of(queue) == [b"3", b"4", b"5"]
        broker.queues.dead_letter_marks.move(broker.queues.by_id)
        assert list(broker.queues.dead_letter_marks._dump()) == []


async def test_letters_that_wait_for_their_leases_are_written_when_the_queue_is_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        queue, dead = await declared_with_dead_letters(broker)
        await publish(broker, 0, 2)
        queue.settle([one.position for one in queue.acquire(queue, 2)], Outcome.REJECT)
        assert not dead.ready
        queue.queues.delete(queue)
        await until(lambda: dead.ready == 2)


async def test_what_is_delayed_outlives_retention(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS) as broker:
        queue = await declared(broker)
        await publish(broker, 0, 1)
        [taken] = queue.acquire(queue, 1)
        queue.settle([taken.position], Outcome.RELEASE, delay_ms=3 * DAY_MS)
        assert not queue.ready and not queue.unacked
        stem = broker.namespace("/").stem(broker.options.defaults)
        stem.engine.roll()
        clock.advance_ms(2 * DAY_MS)
        await broker.snapshot()
        await broker.maintenance.round()
        clock.advance_ms(DAY_MS)
        queue.on_time(broker.queues.now_ms())
        assert all_of(queue) == [b"0"]


async def test_what_a_clean_start_delivers_before_it_writes_anything_is_in_doubt_after_a_kill(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data) as broker:
        queue = await declared(broker)
        await publish(broker, 0, 1)
        queue.settle([one.position for one in queue.acquire(queue, 1)], Outcome.REJECT)
        assert (queue.dead_count, queue.ready) == (1, 0)
    async with running(data) as broker:
        queue_of(broker).redrive()
        assert [one.redelivered for one in queue_of(broker).acquire(queue, 1)] == [False], "its attempts are forgotten"
        copy_live(data, copy)  # what a kill leaves, in the same turn
    async with running(copy) as broker:
        queue_of(broker).redrive()
        assert [one.redelivered for one in queue_of(broker).acquire(queue, 1)] == [True]

"""Counts are of records: not of offsets that a crash left unused, nor of records that a condition leaves out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mainstem.broker.broker import Broker
from mainstem.broker.queues.bindings import ANYTHING, Reach
from mainstem.broker.queues.pulling import Collector
from mainstem.broker.queues.queue import Outcome, Queue
from mainstem.broker.queues.settings import QueueSettings
from tests.unit.broker.kit import durable, reader_of, running, until

RULES: dict[str, dict[str, Any]] = {"own/#": {"layout": "dedicated"}}
OWN = b"own/1"


async def publish(broker: Broker, topic: bytes, count: int) -> None:
    for number in range(count):
        ticket = broker.namespace("/").publish(topic, b"%d" % number)
    broker.ticker.tick()
    await durable(ticket)


def counted(broker: Broker) -> int:
    reader = reader_of(broker.namespace("/"), OWN)
    return reader.count(reader.start_offset, reader.stable_offset)


async def test_offsets_that_kills_left_unused_are_counted_by_nobody(tmp_path: Path) -> None:
    data = tmp_path / "0"
    async with running(data, rules=RULES) as broker:
        await broker.declare_topic(broker.namespace("/"), OWN, broker.namespace("/").policy(OWN))
        await publish(broker, OWN, 5)
        shutil.copytree(data, tmp_path / "1")  # what a kill leaves
    async with running(tmp_path / "1", rules=RULES) as broker:
        assert counted(broker) == 5
        shutil.copytree(tmp_path / "1", tmp_path / "2")  # and another, with only recovery between
    async with running(tmp_path / "2", rules=RULES) as broker:
        await publish(broker, OWN, 2)
        assert counted(broker) == 7
        reader = reader_of(broker.namespace("/"), OWN)
        assert reader.stable_offset - reader.start_offset > 7, "there is a gap"
        shutil.copytree(tmp_path / "2", tmp_path / "3")
    for _ in range(2):  # a start after a kill, and one after a clean stop
        async with running(tmp_path / "3", rules=RULES) as broker:
            assert counted(broker) == 7
            if b"all" not in broker.namespace("/").views:
                broker.create_view(broker.namespace("/"), b"all", b"own/#")
            assert broker.namespace("/").views[b"all"].count() == 7
            queue = declared(broker, "", QueueSettings())
            assert queue.ready == 7
            broker.queues.of(broker.namespace("/")).delete(queue)


def declared(broker: Broker, condition: str, settings: QueueSettings) -> Queue:
    reach = Reach(ANYTHING, b"own/#", "", 0)
    queue, _ = broker.queues.of(broker.namespace("/")).declare("q", settings, reaches=[reach], condition=condition)
    return queue


async def test_what_a_condition_leaves_out_of_the_past_is_not_ready(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await publish(broker, b"own/1", 300)
        await publish(broker, b"own/2", 7)
        queue = declared(broker, "key = 'own/2'", QueueSettings())
        taken = queue.acquire(queue, 3)  # consumers need not wait for the count
        assert len(taken) == 3
        await until(lambda: queue.ready == 4)
        await publish(broker, b"own/1", 2)
        await publish(broker, b"own/2", 2)
        await until(lambda: queue.ready == 6)
        assert len(queue.acquire(queue, 10)) == 6
        assert queue.ready == 0


async def test_a_consumer_that_waits_is_given_only_what_the_condition_holds_for(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        queue = declared(broker, "key = 'own/2'", QueueSettings())
        taker = Collector(queue, 10, 1 << 20, queue)
        queue.attach(taker)
        await publish(broker, b"own/1", 2)
        await publish(broker, b"own/2", 2)
        await until(lambda: len(taker.taken) == 2)
        assert {taken.record.key for taken in taker.taken} == {b"own/2"}
        assert (queue.ready, queue.unacked) == (0, 2)


async def test_a_limit_of_length_waits_for_the_count_and_drops_nothing_that_has_its_place(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await publish(broker, b"own/1", 300)
        await publish(broker, b"own/2", 7)
        queue = declared(broker, "key = 'own/2'", QueueSettings(length_max=10))
        await publish(broker, b"own/2", 1)
        await until(lambda: queue.ready == 8)
        assert len(queue.acquire(queue, 20)) == 8


async def test_a_count_that_a_kill_cut_short_is_done_after_the_start(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data) as broker:
        await publish(broker, b"own/1", 300)
        await publish(broker, b"own/2", 7)
        queue = declared(broker, "key = 'own/2'", QueueSettings())
        written = broker.queues.of(broker.namespace("/")).save(queue)
        ticket = broker.queues.journal_changes(queue)
        assert written is not None and ticket is not None
        while not written.done():
            broker.ticker.tick()
        assert queue.level(0).cursor.estimated
        broker.ticker.drain()
        shutil.copytree(data, copy)  # written is enough: a kill keeps what the kernel has
    async with running(copy) as broker:
        again = broker.queues.of(broker.namespace("/")).get("q")
        await until(lambda: again.ready == 7)


@pytest.mark.parametrize("bytes_max", [None, 1 << 20])
async def test_bytes_are_counted_with_what_came_back(tmp_path: Path, bytes_max: int | None) -> None:
    async with running(tmp_path, rules=RULES) as broker:
        await broker.declare_topic(broker.namespace("/"), OWN, broker.namespace("/").policy(OWN))
        queue = declared(broker, "", QueueSettings(bytes_max=bytes_max))
        await publish(broker, OWN, 600)  # more than is counted at once
        queue.apply_events()
        size = sum(len(str(n)) for n in range(600))
        assert queue.ready_bytes == size
        first = queue.acquire(queue, 500)
        assert queue.ready_bytes == size - sum(len(one.record.value or b"") for one in first)
        queue.settle([one.position for one in first], Outcome.RELEASE)
        again = queue.acquire(queue, 100)  # before all is counted
        left = size - sum(len(one.record.value or b"") for one in again)
        await until(lambda: queue.ready_bytes == left)
        queue.settle([one.position for one in again[:50]], Outcome.ACK)
        queue.settle([one.position for one in again[50:]], Outcome.RELEASE)
        left += sum(len(one.record.value or b"") for one in again[50:])
        await until(lambda: queue.ready_bytes == left)
        queue.settle([one.position for one in queue.acquire(queue, 10)], Outcome.RELEASE)
        queue.purge()
        broker.ticker.tick()
        assert queue.ready_bytes == 0


async def test_what_came_back_before_a_clean_stop_is_counted_after_the_start(tmp_path: Path) -> None:
    async with running(tmp_path, rules=RULES) as broker:
        await broker.declare_topic(broker.namespace("/"), OWN, broker.namespace("/").policy(OWN))
        queue = declared(broker, "", QueueSettings())
        await publish(broker, OWN, 10)
        assert len(queue.acquire(queue, 10)) == 10
    async with running(tmp_path, rules=RULES) as broker:
        queue = broker.queues.of(broker.namespace("/")).get("q")
        await until(lambda: queue.ready_bytes == 10)
        assert len(queue.acquire(queue, 10)) == 10
        assert queue.ready_bytes == 0

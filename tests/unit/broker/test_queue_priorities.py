"""Where the ready records of a priority lie: on disk, exact after restarts and crashes, built again when in doubt."""

from __future__ import annotations

import shutil
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainstem.broker.broker import Broker
from mainstem.broker.queues import ready_index
from mainstem.broker.queues.bindings import ANYTHING, Reach
from mainstem.broker.queues.queue import Queue
from mainstem.broker.queues.queue_sink import Taker
from mainstem.broker.queues.ready_index import ReadyIndex
from mainstem.broker.queues.settings import QueueSettings
from mainstem.model.amqp_content import Content
from mainstem.model.origin import Origin
from tests.unit.broker.kit import durable, running

PRIORITIES = 3

Steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 40)),
        st.tuples(st.just("take"), st.integers(1, 20)),
        st.tuples(st.just("settle"), st.integers(0, 30)),
        st.tuples(st.just("rewind"), st.just(0)),
        st.tuples(st.just("write"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(Steps)
def test_the_index_gives_back_what_was_added_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[Any]
) -> None:
    monkeypatch.setattr(ready_index, "UNWRITTEN_MAX", 16)
    monkeypatch.setattr(ready_index, "AHEAD", 4)
    monkeypatch.setattr(ready_index, "SETTLED_KEPT_MAX", 8)
    path = tmp_path / "x.ready"
    path.unlink(missing_ok=True)
    index = ReadyIndex(path)
    unread: deque[int] = deque()
    taken, head = 0, 0
    for what, count in steps:
        if what == "add":
            for _ in range(count):
                head += 3
                index.add(head)
                unread.append(head)
        elif what == "take":
            assert index.take(count) == list(unread)[taken : taken + count]
            taken = min(taken + count, len(unread))
        elif what == "settle":
            for _ in range(min(count, taken)):
                unread.popleft()
                taken -= 1
            index.settle(unread[0] if unread else head + 1)
        elif what == "rewind":
            index.rewind(unread[0] if unread else head + 1)
            taken = 0
        else:
            index.write()
            if what == "restart":
                index.close()
                index, taken = ReadyIndex(path), 0
                assert index.load(unread[0] if unread else head + 1, head + 1, len(unread))
    assert index.peek(1000, unread[0] if unread else head + 1) == list(unread)
    index.remove()


class Worker(Taker):
    """Takes what it has credit for."""

    def __init__(self, credit: int) -> None:
        super().__init__(credit=credit)
        self.bodies: list[bytes] = []

    def take(self, record: Any, redelivered: bool, attempts: int) -> bool:
        self.bodies.append(record.value)
        return True


def queue_of(broker: Broker) -> Queue:
    return broker.queues.of(broker.namespace("/")).get("q")


async def declared(broker: Broker, priority_max: int = PRIORITIES) -> Queue:
    queue, written = broker.queues.of(broker.namespace("/")).declare(
        "q", QueueSettings(priority_max=priority_max), reaches=[Reach(ANYTHING, b"q")]
    )
    assert written is not None
    await written
    return queue


async def publish(broker: Broker, first: int, count: int) -> None:
    for n in range(first, first + count):
        content = Content()
        content.fields["priority"] = bytes((n % PRIORITIES,))
        headers = [(b"ms-amqp", content.encode())]
        ticket = broker.namespace("/").publish(b"q", b"%d" % n, headers=headers, origin=Origin.AMQP)
        if n % 10 == 0:
            broker.ticker.tick()
    broker.ticker.tick()
    await durable(ticket)


def by_priority(numbers: range) -> list[bytes]:
    return [b"%d" % n for p in reversed(range(PRIORITIES)) for n in numbers if n % PRIORITIES == p]


def all_of(queue: Queue) -> list[bytes | None]:
    found: list[bytes | None] = []
    while taken := queue.acquire(queue, 50):
        found += [one.record.value for one in taken]
    return found


@pytest.mark.parametrize("damage", ["none", "gone", "short", "garbage"])
async def test_after_a_crash_records_come_by_priority(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data) as broker:
        queue = await declared(broker)
        await publish(broker, 0, 300)
        queue.apply_events()
        ticket = broker.queues.journal_changes(queue)
        assert ticket is not None
        await durable(ticket)
        await publish(broker, 300, 30)
        shutil.copytree(data, copy)  # what a kill leaves
    caplog.set_level("INFO", "mainstem.broker")
    for path in (copy / "queues").glob("*-1.ready"):
        if damage == "gone":
            path.unlink()
        elif damage == "short":
            path.write_bytes(path.read_bytes()[:-16])
        elif damage == "garbage":
            path.write_bytes(bytes(len(path.read_bytes())))
    caplog.clear()
    async with running(copy) as broker:
        queue = queue_of(broker)
        assert ("indexed 300 ready records again" in caplog.text) == (damage != "none")
        assert queue.ready == 330
        assert [one.record.value for one in queue.browse(5)] == by_priority(range(330))[:5]
        assert all_of(queue) == by_priority(range(330))


async def test_a_consumer_that_leaves_and_comes_back_misses_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        queue = await declared(broker)
        await publish(broker, 0, 300)
        first = Worker(credit=1)
        queue.attach(first)
        broker.ticker.tick()
        queue.detach(first)  # what was read ahead for it is forgotten
        second = Worker(credit=1_000)
        queue.attach(second)
        broker.ticker.tick()
        assert first.bodies + second.bodies == by_priority(range(300))


async def test_a_backlog_of_priorities_lies_on_disk(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        queue = await declared(broker)
        await publish(broker, 0, 6_000)
        in_memory = [len(level.index._unwritten) + len(level.index._ahead) for level in queue.levels if level.index]
        assert max(in_memory) <= ready_index.UNWRITTEN_MAX + ready_index.AHEAD
        files = sorted((tmp_path / "queues").iterdir())
        assert sum(path.stat().st_size for path in files) > 6_000 * 8 - PRIORITIES * ready_index.UNWRITTEN_MAX * 8
        queue.purge()
        assert sum(path.stat().st_size for path in files) == 0
        broker.queues.of(broker.namespace("/")).delete(queue)
        assert not list((tmp_path / "queues").iterdir())


async def test_a_queue_that_was_empty_before_a_crash_keeps_what_comes_after_it(tmp_path: Path) -> None:
    """A queue without priorities finds what is unread by reading the log on, whatever it counted at the start."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data) as broker:
        await declared(broker, priority_max=0)
        await publish(broker, 0, 5)
        shutil.copytree(data, copy)
    async with running(copy) as broker:
        queue = queue_of(broker)
        await publish(broker, 5, 5)
        assert queue.ready == 10
        assert all_of(queue) == [b"%d" % n for n in range(10)]

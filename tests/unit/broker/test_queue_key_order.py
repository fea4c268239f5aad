"""A queue that is ordered by key: no two consumers have records of one key, and nobody waits for another's key."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainstem.broker.broker import Broker
from mainstem.broker.queues.bindings import ANYTHING, Reach
from mainstem.broker.queues.queue import Outcome, Queue
from mainstem.broker.queues.queue_sink import Taker
from mainstem.broker.queues.settings import QueueSettings
from tests.unit.broker.kit import durable, running


class Worker(Taker):
    def __init__(self, credit: int) -> None:
        super().__init__(credit=credit)
        self.held: dict[int, tuple[bytes, bytes]] = {}
        self.roomless = False

    def take(self, record: Any, redelivered: bool, attempts: int) -> bool:
        if self.roomless:
            return False
        self.held[record.stamp] = (record.key, record.value)
        return True

    def end(self, position: int, outcome: Outcome) -> tuple[bytes, bytes]:
        pair = self.held.pop(position)
        self.credit += 1
        self.queue.settle([position], outcome)
        return pair


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path) as started:
        yield started


def ordered(broker: Broker, **more: Any) -> Queue:
    settings = QueueSettings(order_by_key=True, **more)
    queue, _ = broker.queues.of(broker.namespace("/")).declare("q", settings, reaches=[Reach(ANYTHING, b"q")])
    return queue


async def publish(broker: Broker, pairs: list[tuple[bytes | None, bytes]]) -> None:
    for key, value in pairs:
        ticket = broker.namespace("/").publish(b"q", value, key=key)
        broker.ticker.tick()
    await durable(ticket)


def values(worker: Worker) -> list[bytes]:
    return [value for _, value in worker.held.values()]


async def test_a_key_stays_with_its_consumer_and_others_go_on(broker: Broker) -> None:
    queue = ordered(broker)
    one, other = Worker(credit=2), Worker(credit=2)
    queue.attach(one)
    queue.attach(other)
    await publish(broker, [(b"a", b"a1"), (b"a", b"a2"), (b"a", b"a3"), (b"b", b"b1"), (b"b", b"b2"), (b"c", b"c1")])
    holders = {
        key: {n for n, w in enumerate((one, other)) for k, _ in w.held.values() if k == key} for key in (b"a", b"b")
    }
    assert all(len(found) == 1 for found in holders.values())
    assert sorted(values(one) + values(other)) == [b"a1", b"a2", b"b1", b"b2"]
    has_a = one if b"a1" in values(one) else other
    has_a.end(next(iter(has_a.held)), Outcome.ACK)
    broker.ticker.tick()
    assert sorted(values(has_a)) == [b"a2", b"a3"]
    assert queue.ready == 1
    for position in list(has_a.held):
        has_a.end(position, Outcome.ACK)
    broker.ticker.tick()
    assert values(has_a) == [b"c1"]


async def test_what_is_given_back_comes_first_again_and_only_to_who_holds_the_key(broker: Broker) -> None:
    queue = ordered(broker)
    one, other = Worker(credit=2), Worker(credit=5)
    queue.attach(one)
    await publish(broker, [(b"a", b"1"), (b"a", b"2"), (b"a", b"3")])
    queue.attach(other)
    broker.ticker.tick()
    assert (values(one), values(other)) == ([b"1", b"2"], [])
    one.end(next(iter(one.held)), Outcome.RELEASE)
    broker.ticker.tick()
    assert (sorted(values(one)), values(other)) == ([b"1", b"2"], [])
    queue.detach(one)
    for position in sorted(one.held):
        one.end(position, Outcome.RELEASE)
    broker.ticker.tick()
    assert values(other) == [b"1", b"2", b"3"]


async def test_nobody_having_room_blocks_no_key_for_ever(broker: Broker) -> None:
    queue = ordered(broker)
    one = Worker(credit=5)
    one.roomless = True
    queue.attach(one)
    await publish(broker, [(b"a", b"1"), (None, b"2"), (b"a", b"3")])
    assert queue.ready == 3
    one.roomless = False
    queue.wake()
    broker.ticker.tick()
    assert values(one) == [b"1", b"2", b"3"]


async def test_pulling_holders_have_their_own_keys(broker: Broker) -> None:
    queue = ordered(broker)
    await publish(broker, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", b"4")])
    one, other = object(), object()
    assert [taken.record.value for taken in queue.acquire(one, 1)] == [b"1"]
    second = queue.acquire(other, 4)
    assert [taken.record.value for taken in second] == [b"2", b"4"]
    assert [taken.record.value for taken in queue.acquire(one, 4)] == [b"3"]


@pytest.mark.parametrize("seed", range(4))
async def test_in_any_interleaving_keys_are_ordered_and_everything_is_done(broker: Broker, seed: int) -> None:
    rng = random.Random(seed)
    queue = ordered(broker)
    workers = [Worker(credit=rng.randint(1, 4)) for _ in range(3)]
    for worker in workers:
        queue.attach(worker)
    pairs = [(b"%d" % rng.randint(0, 5), b"%d" % n) for n in range(120)]
    await publish(broker, pairs)  # type: ignore[arg-type]
    done: dict[bytes, list[int]] = {}
    for _ in range(5_000):
        if queue.ready + queue.unacked == 0:
            break
        for worker in workers:
            others = {key for w in workers if w is not worker for key, _ in w.held.values()}
            assert not others & {key for key, _ in worker.held.values()}
            for position in sorted(worker.held):
                if rng.random() < 0.5:
                    if rng.random() < 0.2 and position == max(worker.held):
                        worker.end(position, Outcome.RELEASE)
                    else:
                        key, value = worker.end(position, Outcome.ACK)
                        done.setdefault(key, []).append(int(value))
        queue.wake()
        broker.ticker.tick()
    assert sum(map(len, done.values())) == 120

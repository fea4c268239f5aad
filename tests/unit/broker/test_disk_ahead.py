"""What a log needs of the disk soon is done by a thread: the loop waits for no fsync while it can be avoided."""

from __future__ import annotations

import asyncio
import threading
from array import array
from pathlib import Path

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.delivery.ahead import Ahead
from mainstem.broker.topics.policy import Policy
from mainstem.log.topic_index import TopicIndex
from mainstem.log.topic_index_format import CHUNK_RECORDS
from mainstem.model.topic_tries import TopicTrie
from mainstem.storage.disk import RealDisk
from mainstem.storage.reservation import Pace
from tests.unit.broker.kit import Collector, opened, until

TICKS, RECORDS = 60, 200


class NotingDisk(RealDisk):
    """Who waited for it."""

    def __init__(self) -> None:
        super().__init__()
        self.synced_by: list[int] = []

    def fsync(self, fd: int) -> None:
        self.synced_by.append(threading.get_ident())
        super().fsync(fd)


async def test_a_flood_reserves_its_offsets_in_a_thread(tmp_path: Path) -> None:
    disk = NotingDisk()
    broker = Broker(BrokerOptions(tmp_path, disk=disk))
    await broker.open()
    broker.recover_journal()
    namespace = broker.namespace("/")
    broker.create_topic(namespace, b"flood", Policy())
    route = namespace.route(b"flood")

    def has_enough() -> bool:
        broker.ticker._disk_ahead.look(route.log)
        return not route.log.is_low

    for _ in range(3):  # the first block is small, and nobody knows the rate yet
        for _ in range(RECORDS):
            namespace.publish(b"flood", b"x")
        broker.ticker.tick()
    await until(has_enough)
    disk.synced_by.clear()
    for _ in range(TICKS):
        for _ in range(RECORDS):
            namespace.publish(b"flood", b"x")
        broker.ticker.tick()
        await until(has_enough)
    by = set(disk.synced_by)
    await broker.close()
    assert by, "offsets were reserved meanwhile"
    assert threading.get_ident() not in by


async def test_a_full_chunk_of_the_topic_index_is_saved_in_a_thread_at_once(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    namespace = broker.namespace("/")
    broker.create_topic(namespace, b"flood", Policy())
    log = namespace.route(b"flood").log
    assert log.index is not None
    log.index.add(log.index.covered_end, array("I", [1]) * (CHUNK_RECORDS + 1))
    ahead = Ahead(asyncio.get_running_loop())
    ahead.look(log)
    await asyncio.sleep(0)
    assert log.index.waiting, "what is not stable yet is not saved"
    log.stable = 2 * CHUNK_RECORDS
    ahead.look(log)
    await until(lambda: not log.index.waiting)  # type: ignore[union-attr]
    log.stable = log.written
    await broker.close()


def test_a_chunk_is_due_once_it_is_full_and_stable(tmp_path: Path) -> None:
    index = TopicIndex.open(tmp_path / "index", TopicTrie())
    index.topics.put(1, b"a")
    index.add(0, array("I", [1]) * CHUNK_RECORDS)
    assert not index.has_full(CHUNK_RECORDS), "it is open until something comes behind it"
    index.add(CHUNK_RECORDS, array("I", [1]))
    assert not index.has_full(CHUNK_RECORDS - 1)
    assert index.has_full(CHUNK_RECORDS)
    assert index.checkpoint(CHUNK_RECORDS) == 1
    assert not index.has_full(CHUNK_RECORDS)
    index.close()


def test_a_flood_that_outruns_the_thread_waits_a_few_times_only() -> None:
    pace, reserved, waits = Pace(), 0, 0
    for tick in range(100):
        offset = tick * 10_000
        if offset > reserved:
            waits += 1
            reserved = offset + pace.next(offset, tick)
    assert waits <= 8


async def test_while_much_waits_to_be_flushed_nothing_more_is_delivered(tmp_path: Path) -> None:
    class Receiver:
        flushed = 0

        def flush(self) -> None:
            self.flushed += 1

    broker = await opened(tmp_path)
    namespace = broker.namespace("/")
    broker.create_topic(namespace, b"t", Policy())
    sink, receiver = Collector(namespace, [b"t"]), Receiver()
    namespace.subscribe(b"t", sink, None)
    broker.ticker.is_crowded = lambda: not receiver.flushed
    broker.ticker._receivers.append(receiver)
    for value in (b"1", b"2"):
        namespace.publish(b"t", value)
    broker.ticker.tick()
    assert (sink.seen, receiver.flushed) == ([], 1)
    broker.ticker.tick()
    assert [value for _, value in sink.seen] == [b"1", b"2"]
    await broker.close()


async def test_a_topic_that_a_publish_creates_costs_the_loop_only_its_directorys_name(tmp_path: Path) -> None:
    disk = NotingDisk()
    broker = Broker(BrokerOptions(tmp_path, Policy(layout="dedicated"), disk=disk))
    await broker.open()
    broker.recover_journal()
    namespace = broker.namespace("/")
    namespace.publish(b"one", b"x")
    await until(lambda: b"one" in namespace.topics)
    broker.ticker.drain()
    disk.synced_by.clear()
    namespace.publish(b"two", b"x")
    await until(lambda: b"two" in namespace.topics)
    broker.ticker.drain()
    log = namespace.topics[b"two"].partitions[0].log
    await until(lambda: log.stable == 1)
    by = list(disk.synced_by)
    await broker.close()
    assert by.count(threading.get_ident()) <= 1
    assert set(by) != {threading.get_ident()}, "another thread reserved its offsets"

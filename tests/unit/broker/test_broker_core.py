"""One message from publish to disk to a live sink, to one that catches up, and through a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.topics.policy import Policy
from mainstem.broker.topics.reading import PartitionReader
from tests.unit.broker.kit import Collector, Released, opened, until


@pytest.fixture(params=["segment", "memory", "rocksdb"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def broker(tmp_path: Path, engine: str) -> AsyncIterator[Broker]:
    broker = await opened(tmp_path, engine=engine)
    yield broker
    await broker.close()


async def test_a_published_record_reaches_a_live_sink_and_its_ticket_is_released(broker: Broker) -> None:
    namespace = broker.namespace("/")
    sink = Collector(namespace, [b"a/+"])
    namespace.subscribe(b"a/+", sink, None)
    waiter = Released()
    namespace.publish(b"a/b", b"hello").wait(waiter)
    namespace.publish(b"other", b"no").wait(waiter)
    await until(lambda: len(waiter.tickets) == 2)
    assert sink.seen == [(b"a/b", b"hello")]
    assert all(ticket.stable for ticket in waiter.tickets)


async def test_a_sink_without_room_catches_up_from_the_log_without_loss_or_repetition(broker: Broker) -> None:
    namespace = broker.namespace("/")
    sink = Collector(namespace, [b"s/#"], room=3)
    namespace.subscribe(b"s/#", sink, None)
    expected = []
    for n in range(2_000):
        namespace.publish(b"s/%d" % (n % 7), b"%d" % n)
        expected.append((b"s/%d" % (n % 7), b"%d" % n))
        if n % 100 == 0:
            await asyncio.sleep(0)
        if n == 1_000:
            sink.room = 500
            namespace.resume(sink)
    await until(lambda: sink.room == 0)
    sink.room = 1 << 30
    await until(lambda: sink not in broker.pump._tasks)
    namespace.resume(sink)
    await until(lambda: sink.live)
    namespace.publish(b"s/end", b"end")
    await until(lambda: sink.seen[-1] == (b"s/end", b"end"))
    assert sink.seen == [*expected, (b"s/end", b"end")]


async def test_a_sink_that_starts_in_the_past_reads_history_of_all_logs_in_order(broker: Broker) -> None:
    namespace = broker.namespace("/")
    broker.create_topic(namespace, b"mix/own", Policy(engine=namespace.defaults.engine, layout="dedicated"))
    expected = []
    for n in range(500):
        topic = b"mix/own" if n % 3 == 0 else b"mix/%d" % n
        namespace.publish(topic, b"%d" % n)
        expected.append((topic, b"%d" % n))
        await asyncio.sleep(0)
    late = Collector(namespace, [b"mix/#"])
    late.live, late.position = False, 0
    namespace.subscribe(b"mix/#", late, None)
    namespace.resume(late)
    await until(lambda: late.live)
    assert late.seen == expected


async def test_a_shared_topic_is_read_by_offset_as_if_it_were_alone(broker: Broker) -> None:
    namespace = broker.namespace("/")
    for n in range(100):
        ticket = namespace.publish(b"t/%d" % (n % 10), b"%d" % n)
    waiter = Released()
    ticket.wait(waiter)
    await until(lambda: bool(waiter.tickets))
    topic = namespace.find_topic(b"t/3")
    assert topic is not None
    reader = PartitionReader(topic.partitions[0], namespace.topic_of)
    records, after = reader.records(0, 1 << 20)
    assert [record.value for record in records] == [b"%d" % n for n in range(3, 100, 10)]
    assert reader.count(0, after) == 10
    assert after == reader.stable_offset


async def test_everything_durable_is_there_again_after_a_restart(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    namespace = broker.namespace("/")
    applied: dict[bytes, bytes | None] = {}
    broker.journal.register("test", applied.__setitem__, lambda: [])
    for n in range(50):
        ticket = namespace.publish(b"r/%d" % n, b"%d" % n)
    broker.journal.put("test", b"k", b"v")
    waiter = Released()
    ticket.wait(waiter)
    await until(lambda: bool(waiter.tickets))
    view = broker.create_view(namespace, b"all-r", b"r/#")
    stamp = broker.stamps.next
    await broker.close()

    again = Broker(BrokerOptions(tmp_path))
    await again.open()
    again.journal.register("test", applied.__setitem__, lambda: [])
    again.recover_journal()
    found = again.namespace("/").views[b"all-r"]
    assert found.filter == view.filter
    slot = found.slot(0)
    assert slot is not None
    records, _ = slot.records(0, 1 << 20)
    assert [record.value for record in records] == [b"%d" % n for n in range(50)]
    assert again.stamps.next >= stamp
    await again.close()


async def test_a_topic_moves_between_layouts_and_keeps_its_offsets(broker: Broker, engine: str) -> None:
    namespace = broker.namespace("/")
    for n in range(10):
        namespace.publish(b"m", b"%d" % n)
    broker.create_topic(namespace, b"m", Policy(engine=engine, layout="dedicated"))
    for n in range(10, 20):
        namespace.publish(b"m", b"%d" % n)
    topic = namespace.topics[b"m"]
    broker.move_topic(namespace, topic, Policy(engine=engine, layout="shared"))
    for n in range(20, 30):
        ticket = namespace.publish(b"m", b"%d" % n)
    waiter = Released()
    ticket.wait(waiter)
    await until(lambda: bool(waiter.tickets))
    reader = PartitionReader(topic.partitions[0], namespace.topic_of)
    await until(lambda: reader.stable_offset >= ticket.end_offset)
    seen, offset = [], 0
    while offset < reader.stable_offset:
        records, offset = reader.records(offset, 1 << 20)
        seen += [(record.offset, record.value) for record in records]
    assert [value for _, value in seen] == [b"%d" % n for n in range(30)]
    assert [offset for offset, _ in seen] == sorted({offset for offset, _ in seen})

"""Deleting topics and records, erasing them, and making them again."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainstem.broker.broker import Broker
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.topics.policy import Policy
from mainstem.codec.batch import decode_frames
from mainstem.log import low_marks
from mainstem.log.log import Log
from mainstem.metadata import sqlite
from mainstem.model.clock import ManualClock
from mainstem.model.errors import NotFound, OffsetOutOfRange, Overloaded, StorageFault
from tests.unit.broker.kit import (
    DAY_MS,
    Collector,
    durable,
    everything,
    kafka_batch,
    opened,
    produce,
    reader_of,
    running,
    until,
    values,
)


@pytest.fixture(params=["segment", "rocksdb", "memory"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    broker = await opened(tmp_path, engine=request.param)
    yield broker
    await broker.close()


@pytest.fixture
def namespace(broker: Broker) -> Namespace:
    return broker.namespace("/")


async def fill(namespace: Namespace, count: int = 30, *topics: bytes) -> None:
    """Records 0 to count - 1, in turn to the topics, several to a frame."""
    topics = topics or (b"a", b"b", b"c")
    tickets = []
    for n in range(count):
        tickets.append(namespace.publish(topics[n % len(topics)], b"%d" % n))
        if n % 7 == 6:
            namespace.broker.ticker.tick()
    for ticket in tickets:
        await durable(ticket)


async def seen_from_the_start(namespace: Namespace, topic_filter: bytes) -> list[bytes | None]:
    sink = Collector(namespace, [topic_filter])
    sink.live, sink.position = False, 0
    namespace.resume(sink)
    await until(lambda: sink.live)
    return [value for _, value in sink.seen]


def stored_topics(log: Log, topic_of: dict[int, bytes]) -> set[bytes]:
    """The topics of all records that lie in the engine."""
    found: set[bytes] = set()
    offset = 0
    while (piece := log.engine.read(offset, 1 << 16)) is not None:
        records = decode_frames(piece.data, log.id, inflated_bytes_max=1 << 20, topic_of=topic_of)
        found |= {record.topic for record in records}
        offset = piece.end_offset
    return found


async def check_hidden(broker: Broker, namespace: Namespace) -> None:
    """Topic a is gone for every kind of reader, the others are whole."""
    assert namespace.find_topic(b"a") is None
    view = namespace.views.get(b"all") or broker.create_view(namespace, b"all", b"#")
    slot = view.slot(0)
    assert slot is not None
    others = [b"%d" % n for n in range(30) if n % 3]
    assert values(everything(slot)) == others
    assert slot.count(0, slot.stable_offset) == 20
    assert await seen_from_the_start(namespace, b"#") == others
    assert await seen_from_the_start(namespace, b"a") == []
    assert values(everything(reader_of(namespace, b"b"))) == [b"%d" % n for n in range(1, 30, 3)]


async def test_a_deleted_shared_topic_is_gone_for_every_reader(broker: Broker, namespace: Namespace) -> None:
    await fill(namespace)
    await broker.delete_topic(namespace, b"a")
    await check_hidden(broker, namespace)
    with pytest.raises(NotFound):
        broker.delete_topic(namespace, b"a")


async def test_a_deletion_survives_a_restart_and_a_lost_topic_index(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await fill(broker.namespace("/"))
        await broker.delete_topic(broker.namespace("/"), b"a")
    async with running(tmp_path) as broker:
        await check_hidden(broker, broker.namespace("/"))
        log = broker.namespace("/").stem(broker.options.defaults)
        index = broker.logs.path_of(log.id) / "topics"
    for file in index.iterdir():
        file.unlink()
    async with running(tmp_path) as broker:
        await check_hidden(broker, broker.namespace("/"))


async def test_a_topic_made_again_begins_where_the_old_one_ended(broker: Broker, namespace: Namespace) -> None:
    await fill(namespace)
    before = namespace.find_topic(b"a")
    assert before is not None
    await broker.delete_topic(namespace, b"a")
    await durable(namespace.publish(b"a", b"again"))
    again = namespace.find_topic(b"a")
    assert again is not None
    assert again.created != before.created, "it is another topic under the same name"
    assert again.partitions[0].start_offset >= 30
    assert values(everything(reader_of(namespace, b"a"))) == [b"again"]
    assert reader_of(namespace, b"a").count(0, 1 << 40) == 1


async def test_deleting_records_makes_no_other_topic(broker: Broker, namespace: Namespace) -> None:
    await fill(namespace)
    before = namespace.find_topic(b"a")
    assert before is not None
    await broker.delete_records(namespace, before, 0, 10)
    after = namespace.find_topic(b"a")
    assert after is not None
    assert after.created == before.created


async def test_a_reader_that_was_kept_sees_a_deletion_too(broker: Broker, namespace: Namespace) -> None:
    await fill(namespace)
    kept = reader_of(namespace, b"a")
    await broker.delete_topic(namespace, b"a")
    await durable(namespace.publish(b"a", b"again"))
    assert values(everything(kept)) == [b"again"]


async def test_a_declared_shared_topic_is_deleted_with_its_records(broker: Broker, namespace: Namespace) -> None:
    await fill(namespace)
    topic = broker.create_topic(namespace, b"a", namespace.defaults)
    await durable(produce(namespace, b"a", kafka_batch([(b"k", b"kafka")])))
    await broker.delete_topic(namespace, b"a")
    await check_hidden(broker, namespace)
    again = broker.create_topic(namespace, b"a", namespace.defaults)
    assert again.id > topic.id, "ids are never used again"
    assert everything(reader_of(namespace, b"a")) == []


async def test_a_dedicated_topic_goes_with_its_logs_and_comes_again_empty(broker: Broker, namespace: Namespace) -> None:
    policy = namespace.defaults.with_changes({"layout": "dedicated", "partitions": 2})
    topic = broker.create_topic(namespace, b"own", policy)
    logs = [partition.log for partition in topic.partitions]
    await durable(produce(namespace, b"own", kafka_batch([(b"k", b"v")])))
    await broker.delete_topic(namespace, b"own")
    for log in logs:
        await until(lambda log=log: not broker.logs.path_of(log.id).exists())
    assert namespace.find_topic(b"own") is None
    again = broker.create_topic(namespace, b"own", policy)
    assert again.id > topic.id
    assert not {partition.log.id for partition in again.partitions} & {log.id for log in logs}
    assert everything(reader_of(namespace, b"own")) == []


async def test_a_topic_is_deleted_while_it_is_published_to(broker: Broker, namespace: Namespace) -> None:
    """Also while its log is being synced: that must neither fail nor end the process."""
    policy = namespace.defaults.with_changes({"layout": "dedicated"})
    for n in range(20):
        name = b"own/%d" % (n % 2)
        broker.create_topic(namespace, name, policy)
        ticket = namespace.publish(name, b"x" * 1000)
        broker.ticker.tick()
        written = broker.delete_topic(namespace, name)
        if n % 3 == 0:
            await written
        assert (await durable(ticket)).stable
        await asyncio.sleep(0)
    await durable(namespace.publish(b"still", b"alive"))


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["shared", "dedicated"])
@pytest.mark.parametrize("declared", [True, False])
async def test_records_below_a_mark_are_gone_for_every_reader(tmp_path: Path, layout: str, declared: bool) -> None:
    if layout == "dedicated" and not declared:
        pytest.skip("a dedicated topic is always declared")
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        if declared:
            broker.create_topic(namespace, b"a", Policy(layout=layout))
        await fill(namespace)
        records = everything(reader_of(namespace, b"a"))
        topic = namespace.find_topic(b"a")
        assert topic is not None
        mark = records[4].offset
        await broker.delete_records(namespace, topic, 0, mark)
        await check_below(broker, mark, [b"%d" % n for n in range(12, 30, 3)])
    async with running(tmp_path) as broker:
        await check_below(broker, mark, [b"%d" % n for n in range(12, 30, 3)])


async def check_below(broker: Broker, mark: int, left: list[bytes]) -> None:
    namespace = broker.namespace("/")
    reader = reader_of(namespace, b"a")
    assert reader.start_offset == mark
    assert values(everything(reader)) == left
    assert reader.count(0, 1 << 40) == len(left)
    assert await seen_from_the_start(namespace, b"a") == left
    others = [b"%d" % n for n in range(30) if n % 3]
    assert sorted(await seen_from_the_start(namespace, b"+")) == sorted([*left, *others])


async def test_minus_one_deletes_all_that_is_stable_and_more_is_refused(broker: Broker, namespace: Namespace) -> None:
    await fill(namespace)
    topic = broker.create_topic(namespace, b"a", namespace.defaults)
    with pytest.raises(OffsetOutOfRange):
        broker.delete_records(namespace, topic, 0, topic.partitions[0].stable_offset + 1)
    await broker.delete_records(namespace, topic, 0, -1)
    assert topic.partitions[0].start_offset == topic.partitions[0].stable_offset
    assert everything(reader_of(namespace, b"a")) == []
    await durable(namespace.publish(b"a", b"new"))
    assert values(everything(reader_of(namespace, b"a"))) == [b"new"]


async def test_marks_go_with_the_parts_they_hide(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS) as broker:
        namespace = broker.namespace("/")
        await fill(namespace)
        await broker.delete_topic(namespace, b"a")
        stem = namespace.stem(namespace.defaults)
        assert stem.low_marks is not None
        assert stem.low_marks.of(b"a")
        stem.engine.roll()
        clock.advance_ms(2 * DAY_MS)
        await durable(namespace.publish(b"b", b"later"))
        await broker.snapshot()
        await broker.maintenance.round()
        assert stem.low_marks.by_topic == {}
        assert stem.index is not None
        assert stem.index.topics.find(b"a") == 0
    async with running(tmp_path, clock=clock) as broker:
        assert "low/" not in "".join(broker.store.load().kv)


# -- erasing -----------------------------------------------------------------------------------------------------------


async def test_an_erased_topic_leaves_the_disk_and_everything_else_stays(broker: Broker, namespace: Namespace) -> None:
    await fill(namespace)
    broker.create_topic(namespace, b"b", namespace.defaults)
    await durable(produce(namespace, b"b", kafka_batch([(b"k", b"kafka")])))
    broker.journal.put("unknown-kind", b"k", b"state stays")
    stem = namespace.stem(namespace.defaults)
    before = {record.offset: record for record in everything(reader_of(namespace, b"c"))}
    assert await broker.erase_topic(namespace, b"a") == 10
    assert stored_topics(stem, namespace.topic_of) == {b"b", b"c"}
    assert {record.offset: record for record in everything(reader_of(namespace, b"c"))} == before
    assert await broker.erase_topic(namespace, b"b") == 11, "a client's unopened batches too"
    assert stored_topics(stem, namespace.topic_of) == {b"c"}
    assert await seen_from_the_start(namespace, b"#") == [b"%d" % n for n in range(2, 30, 3)]


async def test_erasing_takes_also_what_was_deleted_before(broker: Broker, namespace: Namespace) -> None:
    await fill(namespace)
    await broker.delete_topic(namespace, b"a")
    stem = namespace.stem(namespace.defaults)
    assert b"a" in stored_topics(stem, namespace.topic_of)
    assert await broker.erase_topic(namespace, b"a") == 10
    assert b"a" not in stored_topics(stem, namespace.topic_of)
    with pytest.raises(NotFound):
        await broker.erase_topic(namespace, b"never there")


async def test_what_is_published_after_an_erasing_stays(broker: Broker, namespace: Namespace) -> None:
    await fill(namespace)
    await broker.erase_topic(namespace, b"a")
    await durable(namespace.publish(b"a", b"new"))
    assert await broker.erase_topic(namespace, b"c") == 10
    assert values(everything(reader_of(namespace, b"a"))) == [b"new"]


async def test_a_dedicated_topic_is_erased_and_stays_declared(broker: Broker, namespace: Namespace) -> None:
    policy = namespace.defaults.with_changes({"layout": "dedicated"})
    topic = broker.create_topic(namespace, b"own", policy)
    await fill(namespace, 10, b"own")
    await broker.erase_topic(namespace, b"own")
    log = topic.partitions[0].log
    assert stored_topics(log, namespace.topic_of) == set()
    await durable(namespace.publish(b"own", b"new"))
    assert values(everything(reader_of(namespace, b"own"))) == [b"new"]
    assert topic.partitions[0].start_offset == 10


async def test_an_erased_topic_stays_erased_over_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await fill(broker.namespace("/"))
        await broker.erase_topic(broker.namespace("/"), b"a")
    async with running(tmp_path) as broker:
        await check_hidden(broker, broker.namespace("/"))


async def test_a_deletion_that_metadata_could_not_keep_leaves_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the topic would be back after a restart, empty, and give its offsets a second time."""

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        topic = broker.create_topic(namespace, b"t", Policy(layout="dedicated"))
        log_id = topic.partitions[0].log.id
        await fill(namespace, 30, b"t")
        with monkeypatch.context() as patch:
            patch.setattr(sqlite, "_apply", full)
            with pytest.raises(StorageFault):
                await broker.delete_topic(namespace, b"t")
        await until(lambda: not any(one.name == f"remove-log-{log_id}" for one in threading.enumerate()))
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        assert values(everything(reader_of(namespace, b"t"))) == [b"%d" % n for n in range(30)]
        ticket = await durable(namespace.publish(b"t", b"next"))
        assert ticket.base_offset >= 30


def test_a_deletion_that_is_refused_by_one_of_two_logs_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with running(tmp_path) as broker:
            namespace = broker.namespace("/")
            await fill(namespace, 9)
            longer = broker.options.defaults.with_changes({"retention_ms": 30 * DAY_MS})
            for name in (b"a", b"b"):  # both go on in another stem
                broker.create_topic(namespace, name, longer)
            await fill(namespace, 9, b"a", b"b")
            await broker.delete_topic(namespace, b"b")
            first = next(iter(namespace.stems.values()))
            assert first.low_marks is not None
            first.low_marks.prune(first.written)
            before = values(everything(reader_of(namespace, b"a")))
            monkeypatch.setattr(low_marks, "MARKS_MAX", 1)  # the first has room, the second has none
            with pytest.raises(Overloaded):
                broker.delete_topic(namespace, b"a")
            assert values(everything(reader_of(namespace, b"a"))) == before
            assert b"a" in namespace.topics

    asyncio.run(run())

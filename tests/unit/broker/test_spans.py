"""A topic's engine, layout and policy change while it is live; its offsets go on and its readers never notice."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mainstem.broker.broker import Broker
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.topics.policy import STEMS_MAX, Policy
from mainstem.broker.topics.topic import Topic
from mainstem.model.clock import ManualClock
from mainstem.model.errors import InvalidArgument, MessageTooLarge, Overloaded
from tests.unit.broker.kit import (
    DAY_MS,
    Collector,
    durable,
    everything,
    kafka_batch,
    produce,
    reader_of,
    running,
    until,
    values,
)

FORMS: list[dict[str, Any]] = [
    {"engine": "segment", "layout": "shared"},
    {"engine": "segment", "layout": "dedicated"},
    {"engine": "rocksdb", "layout": "dedicated"},
    {"engine": "memory", "layout": "dedicated"},
    {"engine": "segment", "layout": "shared", "retention_ms": 1_000_000_000},
    {"engine": "rocksdb", "layout": "shared"},
]


async def publish(namespace: Namespace, topic: bytes, first: int, count: int = 10) -> None:
    for n in range(first, first + count):
        ticket = namespace.publish(topic, b"%d" % n)
        if n % 4 == 3:
            namespace.broker.ticker.tick()
    await durable(ticket)


def check_whole(namespace: Namespace, topic: bytes, count: int) -> None:
    records = everything(reader_of(namespace, topic))
    assert values(records) == [b"%d" % n for n in range(count)]
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets)), "offsets only grow"


async def test_a_topic_moves_through_every_engine_and_layout_and_keeps_its_offsets(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        await publish(namespace, b"t", 0)
        before: dict[int, bytes | None] = {}
        topic: Topic | None = None
        for n, form in enumerate(FORMS[1:], 1):
            policy = Policy(**form)
            if topic is None:
                topic = broker.create_topic(namespace, b"t", policy)
            else:
                await broker.move_topic(namespace, topic, policy)
            await publish(namespace, b"t", 10 * n)
            check_whole(namespace, b"t", 10 * (n + 1))
            found = {record.offset: record.value for record in everything(reader_of(namespace, b"t"))}
            assert before.items() <= found.items(), "no offset ever changes its record"
            before = found
        assert topic is not None
        assert len(topic.partitions[0].spans) == len(FORMS)


async def test_readers_and_subscribers_do_not_notice_a_move(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        live = Collector(namespace, [b"t"])
        slow = Collector(namespace, [b"t"], room=5)
        for sink in (live, slow):
            namespace.subscribe(b"t", sink, None)
        await publish(namespace, b"t", 0)
        topic = broker.create_topic(namespace, b"t", Policy(layout="dedicated"))
        await publish(namespace, b"t", 10)
        await broker.move_topic(namespace, topic, Policy(layout="dedicated", engine="rocksdb"))
        await publish(namespace, b"t", 20)
        slow.room = 1 << 30
        namespace.resume(slow)
        await until(lambda: slow.live)
        for sink in (live, slow):
            assert [value for _, value in sink.seen] == [b"%d" % n for n in range(30)]
            assert sink.stamps == sorted(set(sink.stamps))


async def test_moves_survive_restarts_in_between(tmp_path: Path) -> None:
    count = 0
    for form in [FORMS[1], FORMS[0], FORMS[2], FORMS[4], FORMS[1]]:
        async with running(tmp_path) as broker:
            namespace = broker.namespace("/")
            await publish(namespace, b"t", count)
            policy = Policy(**form)
            if b"t" in namespace.topics:
                await broker.move_topic(namespace, namespace.topics[b"t"], policy)
            else:
                broker.create_topic(namespace, b"t", policy)
            await publish(namespace, b"t", count + 10)
            count += 20
            check_whole(namespace, b"t", count)
        async with running(tmp_path) as broker:
            check_whole(broker.namespace("/"), b"t", count)


async def test_a_move_that_was_acked_upon_is_known_after_a_kill(tmp_path: Path) -> None:
    """Records in the new log are acked only once the metadata that leads to them is durable."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data) as broker:
        namespace = broker.namespace("/")
        await publish(namespace, b"t", 0)
        topic = broker.create_topic(namespace, b"t", Policy(layout="dedicated"))
        await publish(namespace, b"t", 10)
        broker.move_topic(namespace, topic, Policy(layout="shared", retention_ms=5 * DAY_MS))
        await publish(namespace, b"t", 20)
        shutil.copytree(data, copy)  # at this moment: what a kill leaves
    async with running(copy) as again:
        check_whole(again.namespace("/"), b"t", 30)


async def test_kafka_batches_move_too(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        topic = broker.create_topic(namespace, b"t", Policy())
        await durable(produce(namespace, b"t", kafka_batch([(b"k", b"0")])))
        await broker.move_topic(namespace, topic, Policy(layout="dedicated"))
        await durable(produce(namespace, b"t", kafka_batch([(b"k", b"1")])))
        assert values(everything(reader_of(namespace, b"t"))) == [b"0", b"1"]


async def test_a_change_that_needs_no_other_log_makes_none(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        topic = broker.create_topic(namespace, b"t", Policy(layout="dedicated"))
        changed = topic.policy.with_changes({"retention_ms": 5_000, "durability": "os"})
        await broker.move_topic(namespace, topic, changed)
        assert len(topic.partitions[0].spans) == 1
        assert str(topic.partitions[0].log.durability) == "os"
    async with running(tmp_path) as broker:
        topic = broker.namespace("/").topics[b"t"]
        assert topic.policy.retention_ms == 5_000
        assert str(topic.partitions[0].log.durability) == "os"


async def test_several_partitions_cannot_share_a_log(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        topic = broker.create_topic(namespace, b"t", Policy(partitions=3))
        assert len({partition.log for partition in topic.partitions}) == 3
        with pytest.raises(InvalidArgument):
            broker.move_topic(namespace, topic, Policy(layout="shared"))
        await broker.add_partitions(namespace, topic, 5)
        assert len(topic.partitions) == 5


async def test_a_span_that_retention_emptied_goes_with_its_log(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker:
        namespace = broker.namespace("/")
        topic = broker.create_topic(namespace, b"t", Policy(layout="dedicated", retention_ms=DAY_MS))
        await publish(namespace, b"t", 0)
        old = topic.partitions[0].log
        await broker.move_topic(namespace, topic, Policy(layout="dedicated", engine="rocksdb", retention_ms=DAY_MS))
        clock.advance_ms(2 * DAY_MS)
        await publish(namespace, b"t", 10)
        await broker.maintenance.round()
        assert len(topic.partitions[0].spans) == 1
        assert values(everything(reader_of(namespace, b"t"))) == [b"%d" % n for n in range(10, 20)]
        assert topic.partitions[0].start_offset == 10
        await until(lambda: not broker.logs.path_of(old.id).exists())
    async with running(tmp_path, clock=clock) as broker:
        topic = broker.namespace("/").topics[b"t"]
        assert len(topic.partitions[0].spans) == 1
        assert topic.partitions[0].start_offset == 10


# -- policies by filter ------------------------------------------------------------------------------------------------


def stem_of(broker: Broker, topic: bytes) -> int:
    return int(broker.namespace("/").route(topic).log.id)


async def test_one_stem_for_each_distinct_policy(tmp_path: Path) -> None:
    rules = {
        "short/#": {"retention_ms": 60_000},
        "also-short/#": {"retention_ms": 60_000},
        "fast/#": {"engine": "memory", "durability": "none"},
        "fast/but/kept": {"engine": "segment", "durability": "sync"},
        "own/#": {"layout": "dedicated"},
    }
    async with running(tmp_path, rules=rules) as broker:
        namespace = broker.namespace("/")
        stems = {name: stem_of(broker, name) for name in (b"a", b"b/c", b"short/1", b"also-short/2", b"fast/1")}
        assert stems[b"a"] == stems[b"b/c"] == stem_of(broker, b"fast/but/kept"), "the most specific rule counts"
        assert stems[b"short/1"] == stems[b"also-short/2"]
        assert len({stems[b"a"], stems[b"short/1"], stems[b"fast/1"]}) == 3
        assert stem_of(broker, b"own/1") != stem_of(broker, b"own/2")
        await broker.store.flush()
        assert namespace.topics[b"own/1"].policy.dedicated
        for name in stems:
            ticket = namespace.publish(name, name)
        await durable(ticket)
    async with running(tmp_path, rules=rules) as broker:
        assert {name: stem_of(broker, name) for name in stems} == stems
        assert values(everything(reader_of(broker.namespace("/"), b"short/1"))) == [b"short/1"]


async def test_the_seventeenth_stem_is_refused_with_a_way_out(tmp_path: Path) -> None:
    rules = {f"p{n}/#": {"retention_ms": 1_000 + n} for n in range(STEMS_MAX)}
    async with running(tmp_path, rules=rules, engine="memory") as broker:
        namespace = broker.namespace("/")
        for n in range(STEMS_MAX - 1):
            namespace.route(b"p%d/x" % n)
        with pytest.raises(Overloaded, match="16 stems") as refused:
            namespace.route(b"p%d/x" % (STEMS_MAX - 1))
        assert "dedicated" in refused.value.fix
        namespace.publish(b"p0/still", b"works")


async def test_a_topic_whose_policy_changed_between_runs_goes_on_in_its_new_stem(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await publish(broker.namespace("/"), b"s/1", 0)
    async with running(tmp_path, rules={"s/#": {"retention_ms": 60_000_000}}) as broker:
        namespace = broker.namespace("/")
        check_whole(namespace, b"s/1", 10)
        await publish(namespace, b"s/1", 10)
        check_whole(namespace, b"s/1", 20)
        assert len(namespace.stems) == 2
    async with running(tmp_path, rules={"s/#": {"retention_ms": 60_000_000}}) as broker:
        check_whole(broker.namespace("/"), b"s/1", 20)


async def test_message_sizes_are_limited_by_the_topics_policy(tmp_path: Path) -> None:
    rules = {"small/#": {"message_bytes_max": 10}}
    async with running(tmp_path, rules=rules, engine="memory") as broker:
        namespace = broker.namespace("/")
        namespace.publish(b"small/1", b"x" * 10)
        with pytest.raises(MessageTooLarge):
            namespace.publish(b"small/1", b"x" * 11)
        namespace.publish(b"large", b"x" * 1_000_000)
        with pytest.raises(MessageTooLarge, match="16777216"):
            namespace.publish(b"large", b"x" * (16 << 20) + b"x")


async def test_a_rule_that_cannot_be_is_refused_when_it_is_set(tmp_path: Path) -> None:
    async with running(tmp_path, engine="memory") as broker:
        with pytest.raises(InvalidArgument, match="did you mean retention_ms"):
            broker.namespace("/").rules = {b"a/#": {"retention": 5}}


async def test_ten_thousand_declared_topics_do_not_slow_each_other_down(tmp_path: Path) -> None:
    """Not a timing: whatever is done per topic must not look at all the others."""
    async with running(tmp_path, engine="memory") as broker:
        namespace = broker.namespace("/")
        for n in range(2_000):
            broker.create_topic(namespace, b"d/%d/x" % n, Policy(engine="memory"))
        looked: list[bytes] = []

        class Watched(dict[bytes, Topic]):
            def values(self) -> Any:
                looked.append(b"all")
                return super().values()

        namespace.topics = Watched(namespace.topics)
        assert len(namespace.logs_of(b"d/7/x")) == 1
        broker.create_view(namespace, b"v", b"d/7/#")
        broker.create_topic(namespace, b"d/7/y", Policy(engine="memory", layout="dedicated"))
        assert len(namespace.logs_of(b"d/7/#")) == 2
        assert looked == []


@pytest.mark.parametrize("change", ["create", "grow", "move"])
async def test_a_change_that_meets_a_limit_half_way_changes_nothing(tmp_path: Path, change: str) -> None:
    """Else records would go to logs that no metadata ever names, or wait for it for ever."""
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        topic = broker.create_topic(namespace, b"t", Policy(partitions=3))
        before = [partition.log for partition in topic.partitions]
        broker.logs.limits.dedicated_logs_max = len(broker.logs.by_id) + 2
        changes: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: broker.begin_topic(namespace, b"u", Policy(partitions=3)),
            "grow": lambda: broker.add_partitions(namespace, topic, 6),
            "move": lambda: broker.move_topic(namespace, topic, Policy(partitions=3, engine="rocksdb")),
        }
        with pytest.raises(Overloaded):
            await changes[change]()
        assert [partition.log for partition in topic.partitions] == before
        assert (topic.policy.partitions, topic.policy.engine) == (3, "segment")
        assert namespace.find_topic(b"u") is None
        await durable(produce(namespace, b"t", kafka_batch([(None, b"0")])))
        await broker.add_partitions(namespace, topic, 5)  # what was given up counts no more
        await durable(produce(namespace, b"t", kafka_batch([(None, b"4")]), 4))
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        assert len(namespace.topics[b"t"].partitions) == 5
        assert values(everything(reader_of(namespace, b"t", 4))) == [b"4"]


async def test_a_client_that_leaves_during_a_change_takes_nobody_with_it(tmp_path: Path) -> None:
    """The new log is stable once its metadata is; that goes on when the one who asked for it waits no more."""
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        topic = broker.create_topic(namespace, b"t", Policy(layout="dedicated"))

        async def change() -> None:
            await broker.move_topic(namespace, topic, Policy(layout="dedicated", engine="rocksdb"))

        client = asyncio.create_task(change())
        await asyncio.sleep(0)  # it waits for the metadata
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        assert client.cancelled()
        assert (await durable(namespace.publish(b"t", b"0"))).stable

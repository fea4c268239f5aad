"""Retention that waits for the archive: nothing that a table does not hold yet is forgotten, streams see it until then."""

from __future__ import annotations

from pathlib import Path

from mainstem.broker.broker import Broker
from mainstem.broker.topics.policy import Policy
from mainstem.log.log import Log
from mainstem.model.clock import ManualClock
from tests.unit.broker.kit import DAY_MS, durable, everything, reader_of, running, values

KEPT = {"retention_ms": DAY_MS, "keep_until_archived": True}


async def publish(broker: Broker, topic: bytes, first: int, count: int = 10) -> None:
    namespace = broker.namespace("/")
    for n in range(first, first + count):
        ticket = namespace.publish(topic, b"%d" % n)
    await durable(ticket)
    for log in broker.logs.by_id.values():
        log.engine.roll()


async def days_pass(broker: Broker, clock: ManualClock) -> None:
    clock.advance_ms(3 * DAY_MS)
    for log in broker.logs.by_id.values():
        log.engine.roll()
    await broker.snapshot()
    await broker.maintenance.round()


def stem_of(broker: Broker) -> Log:
    namespace = broker.namespace("/")
    return namespace.stem(namespace.defaults)


async def test_a_log_waits_for_its_archive_and_streams_still_read_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker:
        namespace = broker.namespace("/")
        broker.create_topic(namespace, b"t", Policy(layout="dedicated", **KEPT))
        await publish(broker, b"t", 0)
        await publish(broker, b"t", 10)
        await publish(broker, b"t", 20)
        await days_pass(broker, clock)
        assert len(everything(reader_of(namespace, b"t"))) == 30, "no archive has reported"
        assert broker.maintenance.held_bytes > 0
        await durable(broker.archives.report(namespace, "raw.t", {"t": {"0": 15}}))
        await broker.maintenance.round()
        assert values(everything(reader_of(namespace, b"t"))) == [b"%d" % n for n in range(10, 30)]
        await durable(broker.archives.report(namespace, "raw.t", {"t": {"0": 30}}))
        await broker.maintenance.round()
        assert everything(reader_of(namespace, b"t")) == []


async def test_reports_outlive_a_restart_and_may_be_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker:
        namespace = broker.namespace("/")
        broker.create_topic(namespace, b"t", Policy(layout="dedicated", **KEPT))
        await publish(broker, b"t", 0)
        await durable(broker.archives.report(namespace, "raw.t", {"t": {"0": 10}}))
        await durable(broker.archives.report(namespace, "given.up", {"t": {"0": 3}}))
    async with running(tmp_path, clock=clock) as broker:
        namespace = broker.namespace("/")
        assert [one["name"] for one in broker.archives.listed()] == ["given.up", "raw.t"]
        await days_pass(broker, clock)
        assert len(everything(reader_of(namespace, b"t"))) == 10, "the slower archive still needs it"
        await durable(broker.archives.forget("given.up"))
        await broker.maintenance.round()
        assert everything(reader_of(namespace, b"t")) == []


async def test_a_stem_waits_until_each_of_its_topics_is_archived(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, **KEPT) as broker:
        namespace, stem = broker.namespace("/"), stem_of(broker)
        await publish(broker, b"a/1", 0)
        await publish(broker, b"b", 10)
        await days_pass(broker, clock)
        await durable(broker.archives.report(namespace, "raw.a", {"#": {str(stem.id): 20}}, "a/#"))
        assert broker.archives.position(stem) == 0, "nobody archives b"
        await durable(broker.archives.report(namespace, "raw.b", {"b": {"0": 15}}))
        assert broker.archives.position(stem) == 15
        await broker.maintenance.round()
        assert stem.start_offset == 10
        assert values(everything(reader_of(namespace, b"b"))) == [b"%d" % n for n in range(10, 20)]
        await publish(broker, b"c", 20)
        assert broker.archives.position(stem) == 0, "c is new, and nobody's"
        await durable(broker.archives.report(namespace, "raw.all", {"#": {str(stem.id): 30}}, "#"))
        assert broker.archives.position(stem) == 15


async def test_a_stems_entry_without_a_filter_promises_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, **KEPT) as broker:
        await publish(broker, b"a", 0)
        stem = stem_of(broker)
        await durable(broker.archives.report(broker.namespace("/"), "raw.view", {"#": {str(stem.id): 10}}))
        assert broker.archives.position(stem) == 0


async def test_what_was_deleted_on_request_goes_without_an_archive(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker:
        namespace = broker.namespace("/")
        topic = broker.create_topic(namespace, b"t", Policy(layout="dedicated", **KEPT))
        await publish(broker, b"t", 0)
        await publish(broker, b"t", 10)
        log = topic.partitions[0].log
        await broker.delete_records(namespace, topic, 0, 10)
        await days_pass(broker, clock)
        assert log.engine.stat().parts[0].base_offset == 10


async def test_compaction_waits_for_the_archive_too(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        broker.create_topic(namespace, b"t", Policy(cleanup="compact", **KEPT))
        for first in (0, 10, 20):
            for n in range(first, first + 10):
                ticket = namespace.publish(b"t", b"%d" % n, key=b"one key")
            await durable(ticket)
            namespace.topics[b"t"].partitions[0].log.engine.roll()
        await broker.maintenance.round()
        assert len(everything(reader_of(namespace, b"t"))) == 30
        await durable(broker.archives.report(namespace, "raw.t", {"t": {"0": 20}}))
        await broker.maintenance.round()
        assert values(everything(reader_of(namespace, b"t"))) == [b"%d" % n for n in range(19, 30)]


async def test_topics_that_do_not_wait_are_forgotten_as_ever(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS) as broker:
        await publish(broker, b"t", 0)
        await days_pass(broker, clock)
        assert stem_of(broker).start_offset == 10

"""What exists changes once it is committed: nobody sees it before, and a refusal is an answer that leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.topics.policy import Policy
from mainstem.metadata.rounds import Write
from mainstem.metadata.rows import NamespaceRow, TopicRow, ViewRow
from mainstem.metadata.sqlite import SqliteStore
from mainstem.metadata.store import Put
from mainstem.model.errors import AlreadyExists, Conflict, MainstemError
from tests.unit.broker.kit import (
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

OWN = {"own/#": {"layout": "dedicated"}, "many/#": {"partitions": 4}}


class GatedStore(SqliteStore):
    """Commits wait while the gate is shut; `refusal` is what the next of them get."""

    def __init__(self, path: Path) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.refusal: MainstemError | None = None
        super().__init__(path)

    def _commit_round(self, writes: list[Write]) -> list[MainstemError | None]:
        self.gate.wait(20)
        if self.refusal is not None and any(write.operations for write in writes):
            return [self.refusal] * len(writes)
        return super()._commit_round(writes)


@asynccontextmanager
async def gated(path: Path, **options: Any) -> AsyncIterator[tuple[Broker, GatedStore]]:
    path.mkdir(exist_ok=True)
    store = GatedStore(path / "metadata.sqlite")
    broker = Broker(BrokerOptions(path, Policy(), OWN, **options), store=store)
    await broker.open()
    broker.recover_journal()
    broker.start()
    for _ in range(3):  # ids come in blocks: none of them waits for the gate
        broker.create_topic(broker.namespace("/"), b"first/%d" % _, Policy(engine="memory", layout="dedicated"))
    broker.create_view(broker.namespace("/"), b"a-view", b"first/#")
    try:
        yield broker, store
    finally:
        store.gate.set()
        store.refusal = None
        await broker.close()


async def test_a_topic_is_found_by_nobody_before_it_is_committed(tmp_path: Path) -> None:
    async with gated(tmp_path) as (broker, store):
        namespace = broker.namespace("/")
        store.gate.clear()
        declaring = asyncio.ensure_future(broker.declare_topic(namespace, b"t", Policy(layout="dedicated")))
        viewing = broker.begin_view(namespace, b"v", b"#")
        await asyncio.sleep(0)
        assert namespace.find_topic(b"t") is None
        assert b"v" not in namespace.views
        with pytest.raises(AlreadyExists):
            broker.begin_view(namespace, b"v", b"a")
        store.gate.set()
        topic = await declaring
        assert namespace.find_topic(b"t") is topic
        assert namespace.views[b"v"] is await viewing


async def test_what_is_published_while_its_topic_is_created_is_kept_in_order_and_delivered_once(tmp_path: Path) -> None:
    async with gated(tmp_path) as (broker, store):
        namespace = broker.namespace("/")
        live = Collector(namespace, [b"own/#"])
        namespace.subscribe(b"own/#", live, None)
        store.gate.clear()
        tickets = [namespace.publish(b"own/a", b"%d" % n) for n in range(3)]
        broker.ticker.write_now()
        topic = broker.begin_topic(namespace, b"own/a", Policy(layout="dedicated")).value
        base = produce_into(topic, kafka_batch([(None, b"3"), (None, b"4")]))
        tickets.append(namespace.publish(b"own/a", b"5"))
        broker.ticker.write_now()
        await asyncio.sleep(0.05)
        assert (live.seen, tickets[0].stable, namespace.find_topic(b"own/a")) == ([], False, None)
        store.gate.set()
        for ticket in tickets:
            assert (await durable(ticket)).error is None
        found = everything(reader_of(namespace, b"own/a"))
        assert sorted(values(found)) == [b"%d" % n for n in range(6)]
        assert [record.offset for record in found] == list(range(6))
        assert found[base].value == b"3"
        await until(lambda: len(live.seen) == 6)
        assert live.stamps == sorted(set(live.stamps))
    async with running(tmp_path) as broker:
        assert len(everything(reader_of(broker.namespace("/"), b"own/a"))) == 6


def produce_into(topic: Any, batch: bytes) -> int:
    from mainstem.codec.batch import read_batch_head
    from mainstem.model.origin import Origin

    partition = topic.partitions[0]
    appended = partition.log.append_batch(
        batch, read_batch_head(batch), partition.route, origin=Origin.KAFKA, topic_id=topic.id
    )
    return int(appended.ref.base_offset)


async def test_a_key_finds_its_partition_also_while_the_topic_is_created(tmp_path: Path) -> None:
    async with gated(tmp_path) as (broker, store):
        namespace = broker.namespace("/")
        store.gate.clear()
        first = [namespace.publish(b"many/t", b"1", key=b"k%d" % n) for n in range(8)]
        store.gate.set()
        for ticket in first:
            await durable(ticket)
        again = [await durable(namespace.publish(b"many/t", b"2", key=b"k%d" % n)) for n in range(8)]
        assert [ticket.log for ticket in first] == [ticket.log for ticket in again]
        assert len({ticket.log for ticket in first}) > 1


async def test_a_name_that_another_broker_took_is_an_answer_and_memory_stays_as_it_was(tmp_path: Path) -> None:
    async with running(tmp_path, rules=OWN) as broker:
        namespace, logs = broker.namespace("/"), dict(broker.logs.by_id)
        other = SqliteStore(tmp_path / "metadata.sqlite")
        names = {900: b"taken", 902: b"own/taken"}
        rows = [TopicRow(number, "/", name, None, "dedicated", 1, {}, 1) for number, name in names.items()]
        other.transact([*map(Put, rows), Put(ViewRow(901, "/", b"seen", b"#", "", {}, 1))]).result(20)
        other.close()
        with pytest.raises(AlreadyExists):
            await broker.declare_topic(namespace, b"taken", Policy(layout="dedicated"))
        with pytest.raises(AlreadyExists):
            await broker.begin_view(namespace, b"seen", b"#")
        ticket = await durable(namespace.publish(b"own/taken", b"lost?"))
        assert isinstance(ticket.error, AlreadyExists)
        assert (namespace.topics, namespace.views, namespace.changing) == ({}, {}, {})
        assert broker.logs.by_id == logs
        assert (await durable(namespace.publish(b"free", b"1"))).error is None
        with pytest.raises(AlreadyExists):  # and again, not only the first time
            await broker.declare_topic(namespace, b"taken", Policy(layout="dedicated"))


@pytest.mark.parametrize("change", ["move", "grow", "alter", "delete", "drop", "records", "namespace"])
async def test_a_refused_change_leaves_everything_as_it_was(tmp_path: Path, change: str) -> None:
    async with gated(tmp_path) as (broker, store):
        namespace = broker.namespace("/")
        topic = await broker.declare_topic(namespace, b"t", Policy(layout="dedicated"))
        for n in range(3):
            await durable(produce(namespace, b"t", kafka_batch([(None, b"%d" % n)])))
        policy, logs = topic.policy, dict(broker.logs.by_id)
        store.refusal = Conflict("someone else was first")
        changes: dict[str, Callable[[], Awaitable[object]]] = {
            "move": lambda: broker.move_topic(namespace, topic, Policy(layout="dedicated", engine="rocksdb")),
            "grow": lambda: broker.add_partitions(namespace, topic, 3),
            "alter": lambda: broker.alter_topic(namespace, topic, Policy(layout="dedicated", retention_ms=5)),
            "delete": lambda: broker.delete_topic(namespace, b"t"),
            "drop": lambda: broker.drop_view(namespace, b"a-view"),
            "records": lambda: broker.delete_records(namespace, topic, 0, 2),
            "namespace": lambda: broker.declare_namespace("new"),
        }
        with pytest.raises(Conflict):
            await changes[change]()
        store.refusal = None
        assert (topic.policy, broker.logs.by_id, namespace.changing) == (policy, logs, {})
        assert (namespace.topics[b"t"], len(topic.partitions)) == (topic, 1)
        assert (list(broker.namespaces), list(namespace.views)) == (["/"], [b"a-view"])
        assert [(span.first, span.end) for span in topic.partitions[0].spans] == [(0, None)]
        await durable(produce(namespace, b"t", kafka_batch([(None, b"3")])))
        await durable(namespace.publish(b"t", b"4"))
        assert values(everything(reader_of(namespace, b"t"))) == [b"0", b"1", b"2", b"3", b"4"]


async def test_what_is_published_into_a_move_that_is_refused_is_refused_too_and_nothing_else_is(tmp_path: Path) -> None:
    async with gated(tmp_path) as (broker, store):
        namespace = broker.namespace("/")
        topic = await broker.declare_topic(namespace, b"t", Policy(layout="dedicated"))
        await durable(namespace.publish(b"t", b"before"))
        store.gate.clear()
        moving = broker.move_topic(namespace, topic, Policy(layout="dedicated", engine="rocksdb"))
        during = namespace.publish(b"t", b"during")
        broker.ticker.write_now()
        store.refusal = Conflict("someone else was first")
        store.gate.set()
        with pytest.raises(Conflict):
            await moving
        assert isinstance((await durable(during)).error, Conflict)
        store.refusal = None
        assert (await durable(namespace.publish(b"t", b"after"))).error is None
        assert values(everything(reader_of(namespace, b"t"))) == [b"before", b"after"]
    async with running(tmp_path) as broker:
        assert values(everything(reader_of(broker.namespace("/"), b"t"))) == [b"before", b"after"]


async def test_a_namespace_exists_once_it_is_committed(tmp_path: Path) -> None:
    async with gated(tmp_path) as (broker, store):
        store.gate.clear()
        declaring = [asyncio.ensure_future(broker.declare_namespace("new")) for _ in range(2)]
        await asyncio.sleep(0)
        assert "new" not in broker.namespaces
        store.gate.set()
        first, second = await asyncio.gather(*declaring)
        assert first is second is broker.namespaces["new"]
        assert NamespaceRow in {row for row, _ in (await broker.store.changes_since(0)).changed}

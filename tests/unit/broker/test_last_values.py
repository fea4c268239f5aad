"""A last-value view: the newest record per key, over everything stored, without a copy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.topics.views import View
from mainstem.codec.batch import decode_batch, split_batches
from mainstem.model.errors import InvalidArgument


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(BrokerOptions(tmp_path))
    await broker.open()
    broker.recover_journal()
    yield broker
    await broker.close()


async def publish(broker: Broker, topic: bytes, value: bytes | None, key: bytes | None = None) -> None:
    broker.namespace("/").publish(topic, value, key=key)
    broker.ticker.tick()
    await broker.ticker.settle(list(broker.logs.by_id.values()))


def table_of(broker: Broker, by: str) -> View:
    return broker.create_view(broker.namespace("/"), b"last", b"dev/#", options={"last_by": by})


async def test_the_newest_value_of_each_topic_is_the_table(broker: Broker) -> None:
    for n in range(20):
        await publish(broker, b"dev/%d" % (n % 4), b"%d" % n)
    table = table_of(broker, "topic").table
    assert table is not None
    assert [(r.topic, r.value) for r in table.items()] == [(b"dev/%d" % n, b"%d" % (16 + n)) for n in range(4)]
    await publish(broker, b"dev/1", b"new")
    found = table.get(b"dev/1")
    assert found is not None
    assert found.value == b"new"


async def test_a_null_value_deletes_its_key(broker: Broker) -> None:
    await publish(broker, b"dev/a", b"1", key=b"k")
    await publish(broker, b"dev/b", b"2", key=b"l")
    table = table_of(broker, "key").table
    assert table is not None
    await publish(broker, b"dev/c", None, key=b"k")
    assert table.get(b"k") is None
    assert [r.key for r in table.items()] == [b"l"]


async def test_a_kafka_reader_sees_a_compacted_topic(broker: Broker) -> None:
    for n in range(10):
        await publish(broker, b"dev/x", b"%d" % n, key=b"%d" % (n % 2))
    slot = table_of(broker, "key").slot(0)
    assert slot is not None
    fetched = slot.read(0, 1 << 20)
    values = [
        record.value
        for part in fetched.parts
        for batch in split_batches(part)
        for record in decode_batch(batch, inflated_bytes_max=1 << 20)
    ]
    assert values == [b"8", b"9"]
    assert fetched.next_offset == slot.stable_offset


async def test_an_unknown_kind_of_table_is_refused(broker: Broker) -> None:
    with pytest.raises(InvalidArgument, match="last-by"):
        table_of(broker, "colour")

"""Metadata put back from an old copy: what it does not know is moved aside, and lost by nobody."""

from __future__ import annotations

import shutil
from pathlib import Path

from mainstem.broker.broker import Broker
from tests.unit.broker.kit import durable, everything, reader_of, running

METADATA = "metadata.sqlite"


async def add(broker: Broker, topic: bytes, value: bytes) -> None:
    namespace = broker.namespace("/")
    if topic not in namespace.topics:
        broker.create_topic(namespace, topic, namespace.policy(topic).with_changes({"layout": "dedicated"}))
    await durable(namespace.publish(topic, value))


def keep(data: Path, copy: Path) -> None:
    shutil.copy(data / METADATA, copy)


def put_back(data: Path, copy: Path) -> None:
    for path in data.glob(METADATA + "*"):
        path.unlink()
    shutil.copy(copy, data / METADATA)


async def test_records_come_back_with_the_metadata_that_names_them(tmp_path: Path) -> None:
    data, old, new = tmp_path / "data", tmp_path / "old", tmp_path / "new"
    async with running(data) as broker:
        await add(broker, b"early", b"1")
    keep(data, old)
    async with running(data) as broker:
        await add(broker, b"late", b"2")
        late = broker.namespace("/").topics[b"late"].partitions[0].log.id
    keep(data, new)
    put_back(data, old)
    async with running(data) as broker:
        namespace = broker.namespace("/")
        assert [record.value for record in everything(reader_of(namespace, b"early"))] == [b"1"]
        assert b"late" not in namespace.topics
        assert (data / "lost" / str(late)).is_dir()
        await add(broker, b"other", b"3")
        assert namespace.topics[b"other"].partitions[0].log.id > late, "its number is not given twice"
    put_back(data, new)
    async with running(data) as broker:
        namespace = broker.namespace("/")
        assert [record.value for record in everything(reader_of(namespace, b"late"))] == [b"2"]
        assert [record.value for record in everything(reader_of(namespace, b"early"))] == [b"1"]

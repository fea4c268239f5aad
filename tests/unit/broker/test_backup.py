"""A backup of a broker that goes on meanwhile: topics move, retention is due, snapshots are taken."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mainstem.broker.broker import Broker
from mainstem.storage import backup as backups
from mainstem.storage.directory import DataDirectory
from tests.unit.broker.kit import durable, everything, opened, reader_of, running, until, values

MORE_THAN_RESERVED = 70_000


def test_a_topic_that_moves_meanwhile_goes_on_after_a_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata comes last: it says that the old log ends where the copied one never came to."""

    async def run() -> None:
        DataDirectory(tmp_path / "data").release()
        async with running(tmp_path / "data", layout="dedicated") as broker:
            namespace = broker.namespace("/")
            await durable(namespace.publish(b"a", b"before"))
            copy_database = backups.copy_database

            def move_first(source: Path, target: Path) -> None:
                if source.name != backups.METADATA:
                    copy_database(source, target)
                    return
                for _ in range(MORE_THAN_RESERVED):
                    namespace.publish(b"a", b"")
                topic = namespace.topics[b"a"]
                broker.move_topic(namespace, topic, topic.policy.with_changes({"engine": "rocksdb"})).now()
                copy_database(source, target)

            monkeypatch.setattr(backups, "copy_database", move_first)
            back_up(broker, tmp_path / "backup")
        backups.restore(tmp_path / "backup", tmp_path / "restored")
        async with running(tmp_path / "restored", layout="dedicated") as broker:
            namespace = broker.namespace("/")
            await durable(namespace.publish(b"a", b"after"))
            assert values(everything(reader_of(namespace, b"a"))) == [b"before", b"after"]

    asyncio.run(run())


def back_up(broker: Broker, target: Path) -> None:
    logs = dict(broker.logs.by_id)
    ends = {log_id: log.stable for log_id, log in logs.items()}
    engines = {log_id: log.engine for log_id, log in logs.items()}
    backups.backup(broker.options.data, target, stamp=broker.stamps.next - 1, ends=ends, engines=engines)


def test_nothing_is_dropped_while_a_backup_runs(tmp_path: Path) -> None:
    async def run() -> None:
        broker = await opened(tmp_path, layout="dedicated", retention_ms=1, segment_bytes=4096)
        namespace = broker.namespace("/")
        for number in range(20):
            await durable(namespace.publish(b"a", b"%d" % number * 400))
        log = namespace.topics[b"a"].partitions[0].log
        first = log.engine.stat().start_offset
        async with broker.maintenance.pause():
            async with broker.maintenance.pause():
                await broker.maintenance.round()
            await broker.maintenance.round()
            assert log.engine.stat().start_offset == first
            assert log.start_offset > first
        await broker.maintenance.round()
        assert log.engine.stat().start_offset > first
        await until(lambda: not broker.maintenance.running)
        await broker.close()

    asyncio.run(run())

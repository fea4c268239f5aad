"""Logs that a clean stop closed are not opened before someone needs them, and an idle namespace costs no file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.log.log import Log
from mainstem.model.errors import DiskFull, StorageFault
from mainstem.storage.log_state import RESERVED, FileState
from mainstem.storage.reservation import Reservation
from mainstem.testing.faulty_disk import FaultyDisk
from tests.live_copies import copy_live
from tests.unit.broker.kit import Collector, until

NAMES = ("a", "b", "c")
FULL = 28  # ENOSPC


async def opened(data: Path, **options: object) -> Broker:
    broker = Broker(BrokerOptions(data, **options))  # type: ignore[arg-type]
    await broker.open()
    broker.recover_journal()
    broker.start()
    return broker


async def with_three_tenants(data: Path) -> None:
    broker = await opened(data)
    for name in NAMES:
        namespace = await broker.declare_namespace(name)
        for n in range(5):
            namespace.publish(b"t/%d" % n, name.encode())
    await written(broker)
    await broker.close()


async def written(broker: Broker) -> None:
    broker.ticker.drain()
    await broker.ticker.settle(list(broker.logs.by_id.values()))


def stem(broker: Broker, name: str) -> Log:
    [found] = broker.namespace(name).stems.values()
    return found


def asleep(broker: Broker) -> set[str]:
    return {name for name in NAMES if stem(broker, name).is_asleep}


async def read_all(broker: Broker, name: str) -> list[bytes | None]:
    collector = Collector(broker.namespace(name), [b"t/#"])
    collector.live, collector.position = False, 0
    broker.pump.resume(collector, [b"t/#"])
    await until(lambda: collector.live)
    return [value for _, value in collector.seen]


async def test_after_a_clean_stop_logs_sleep_until_someone_reads_or_writes_them(tmp_path: Path) -> None:
    await with_three_tenants(tmp_path)
    broker = await opened(tmp_path)
    assert asleep(broker) == set(NAMES)
    assert broker.namespace("a").topic_count == 5
    assert stem(broker, "a").engine.stat().size_bytes > 0
    await broker.maintenance.round()
    assert asleep(broker) == set(NAMES), "counting, measuring and maintenance open none"
    assert await read_all(broker, "a") == [b"a"] * 5
    broker.namespace("b").publish(b"t/new", b"later")
    await written(broker)
    assert asleep(broker) == {"c"}
    assert type(stem(broker, "a")) is Log
    await broker.close()
    again = await opened(tmp_path)
    assert asleep(again) == set(NAMES)
    assert [len(await read_all(again, name)) for name in NAMES] == [5, 6, 5]
    await again.close()


async def test_offsets_go_on_and_an_unclean_stop_opens_only_what_was_open(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    await with_three_tenants(data)
    broker = await opened(data)
    before = stem(broker, "b").next_offset, stem(broker, "b").epoch
    ticket = broker.namespace("b").publish(b"t/9", b"b")
    await written(broker)
    assert (ticket.base_offset, stem(broker, "b").epoch) == before
    stem_ids = {name: stem(broker, name).id for name in NAMES}
    copy_live(data, copy)  # as a crash would leave it
    await broker.close()
    for name in ("a", "c"):  # copying made files, which changes the time of their directories
        log_id = str(stem_ids[name])
        shutil.copystat(data / "logs" / log_id, copy / "logs" / log_id)
    crashed = await opened(copy)
    assert asleep(crashed) == {"a", "c"}
    assert stem(crashed, "b").epoch == before[1] + 1
    assert [len(await read_all(crashed, name)) for name in NAMES] == [5, 6, 5]
    await crashed.close()


async def test_a_log_whose_directory_changed_meanwhile_is_opened_at_the_start(tmp_path: Path) -> None:
    await with_three_tenants(tmp_path)
    broker = await opened(tmp_path)
    log = stem(broker, "a")
    await broker.close()
    path = tmp_path / "logs" / str(log.id)
    reservation = Reservation.of(FileState(path))
    reservation.extend(reservation.end_offset + 100)  # another version of the broker used it, and was killed
    again = await opened(tmp_path)
    assert asleep(again) == {"b", "c"}
    assert stem(again, "a").next_offset == log.next_offset + 100
    await again.close()


async def test_a_log_whose_files_are_not_what_a_clean_stop_noted_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    await with_three_tenants(tmp_path)
    broker = await opened(tmp_path)
    log = stem(broker, "a")
    state = FileState(tmp_path / "logs" / str(log.id))
    kept = dict(state.get(RESERVED) or {})
    state.put(RESERVED, kept | {"end_offset": kept["end_offset"] + 7})
    with pytest.raises(StorageFault, match="a clean stop noted"):
        broker.namespace("a").publish(b"t/1", b"x")
    state.put(RESERVED, kept)
    await broker.close()


async def test_a_full_disk_lets_a_log_sleep_on(tmp_path: Path) -> None:
    disk = FaultyDisk(seed=1)
    broker = await opened(tmp_path, disk=disk)
    (await broker.declare_namespace("a")).publish(b"t/1", b"x")
    await written(broker)
    await broker.close()
    broker = await opened(tmp_path, disk=disk)
    disk.fail("pwritev", FULL)
    with pytest.raises(DiskFull):
        broker.namespace("a").publish(b"t/2", b"y")
    assert stem(broker, "a").is_asleep
    broker.namespace("a").publish(b"t/2", b"y")
    await written(broker)
    assert await read_all(broker, "a") == [b"x", b"y"]
    await broker.close()


async def test_a_log_that_is_altered_while_it_sleeps_obeys_when_it_wakes(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    namespace = broker.namespace("/")
    policy = namespace.defaults.with_changes({"layout": "dedicated", "durability": "none"})
    await broker.declare_topic(namespace, b"t", policy)
    namespace.publish(b"t", b"x")
    await written(broker)
    await broker.close()
    broker = await opened(tmp_path)
    namespace = broker.namespace("/")
    topic = namespace.topics[b"t"]
    log = topic.partitions[0].log
    assert log.is_asleep and str(log.durability) == "none"
    await broker.relocate_topic(namespace, topic, topic.policy.with_changes({"durability": "sync"}))
    namespace.publish(b"t", b"y")
    await written(broker)
    assert not log.is_asleep and log is topic.partitions[0].log
    assert str(log.durability) == "sync" and log.engine.durable_offset == 2
    await broker.close()


async def operations_of_a_start(data: Path, disk: FaultyDisk, namespaces: int) -> int:
    """Of the disk, by a broker with so many idle namespaces, half of them with records, and by a second of idling."""
    broker = await opened(data, disk=disk)
    for n in range(namespaces):
        namespace = await broker.declare_namespace(f"tenant-{n}")
        if n % 2:
            namespace.publish(b"t", b"x")
    await written(broker)
    await broker.close()
    before = disk.operations
    broker = await opened(data, disk=disk)
    await broker.maintenance.round()
    await broker.snapshot()
    found = disk.operations - before
    assert sum(log.is_asleep for log in broker.logs.by_id.values()) == namespaces // 2 + 1, "and the default one"
    await broker.close()
    return found


async def test_an_idle_namespace_opens_no_file_and_never_syncs(tmp_path: Path) -> None:
    disk = FaultyDisk(seed=1)
    few = await operations_of_a_start(tmp_path / "few", disk, 2)
    many = await operations_of_a_start(tmp_path / "many", disk, 20)
    assert many == few

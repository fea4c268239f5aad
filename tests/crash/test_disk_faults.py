"""A disk that refuses, fails or lies: what was acknowledged stays, and nothing is promised after a failure."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mainstem.model.errors import DamagedLog, DiskFull, MainstemError, StorageFault
from mainstem.storage.reservation import Reservation
from mainstem.storage.segment.engine import SegmentEngine
from mainstem.storage.segment.index_cache import IndexCache
from mainstem.storage.segment.open_files import OpenFiles
from mainstem.testing.faulty_disk import FaultyDisk
from mainstem.testing.frames import Writer, read_everything
from tests.crash.simulated_log import DIRECTORY, LOG_ID, SimulatedLog


def open_log(disk: FaultyDisk) -> SegmentEngine:
    files = OpenFiles(disk)
    return SegmentEngine(DIRECTORY, LOG_ID, files=files, indexes=IndexCache(files), segment_bytes=4096)


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("operation", ["fdatasync", "fsync", "fsync_dir", "pwritev"])
def test_after_a_failed_write_or_sync_nothing_more_is_promised(operation: str, after: int) -> None:
    disk = FaultyDisk(seed=after)
    engine = open_log(disk)
    writer = Writer(engine, LOG_ID)
    acked: list[tuple[int, bytes]] = []

    def write_until_it_fails() -> None:
        for number in range(100):
            writer.append([b"%d" % number * 100])
            engine.sync()
            acked[:] = read_everything(engine, LOG_ID)

    disk.fail(operation, errno.EIO, after=after)
    with pytest.raises(StorageFault):
        write_until_it_fails()
    for attempt in (engine.sync, lambda: writer.append([b"more"]), engine.roll):
        with pytest.raises(StorageFault):  # the first failure is final: a second sync would lie
            attempt()
    engine.close()
    disk.restart()
    found = read_everything(open_log(disk), LOG_ID)
    assert found[: len(acked)] == acked
    assert not open_log(disk).stat().clean


def test_a_failed_fdatasync_is_not_tried_again() -> None:
    disk = FaultyDisk(seed=1)
    engine = open_log(disk)
    writer = Writer(engine, LOG_ID)
    writer.append([b"a"])
    engine.sync()
    writer.append([b"b"])
    disk.fail("fdatasync", errno.EIO)
    with pytest.raises(StorageFault):
        engine.sync()
    before = disk.operations
    with pytest.raises(StorageFault):
        engine.sync()
    assert disk.operations == before


def test_a_full_disk_refuses_writes_keeps_serving_reads_and_takes_writes_again() -> None:
    disk = FaultyDisk(seed=2, capacity_bytes=40_000)
    engine = open_log(disk)
    writer = Writer(engine, LOG_ID)
    expected: list[tuple[int, bytes]] = []
    refused = 0
    for number in range(300):
        value = b"%d " % number * 120
        try:
            writer.append([value])
        except DiskFull:
            refused += 1
            assert read_everything(engine, LOG_ID) == expected
            if refused % 3 == 0:
                engine.roll()
                engine.trim(writer.next_offset // 2)
                expected = [(offset, kept) for offset, kept in expected if offset >= engine.start_offset]
            continue
        engine.sync()
        expected.append((writer.next_offset - 1, value))
    assert refused > 5
    assert writer.next_offset > 100
    disk.restart()
    assert read_everything(open_log(disk), LOG_ID) == expected


def test_a_full_disk_refuses_a_reservation_and_keeps_the_old_one() -> None:
    disk = FaultyDisk(seed=3)
    reservation = Reservation.open(DIRECTORY, disk)
    reservation.extend(100)
    reservation.extend(200)
    disk.fail("pwritev", errno.ENOSPC)
    with pytest.raises(DiskFull):
        reservation.extend(300)
    disk.restart()
    assert Reservation.open(DIRECTORY, disk).end_offset == reservation.end_offset == 200


def test_a_flipped_bit_in_any_file_is_noticed_or_harmless() -> None:
    """500 seeds: never a wrong record, never a log that starts empty; what was durable is there or is refused."""
    outcomes = {"refused": 0, "whole": 0, "unreadable": 0, "short": 0}
    for seed in range(500):
        log = SimulatedLog(seed)
        for _ in range(25):
            log.step()
        log.append()
        log.sync()
        log.now_ns += 2_000_000_000
        log.sync()  # a second later: this one writes a checkpoint
        durable = dict(log.present)
        if log.rng.random() < 0.3:
            log.engine.close()
        log.disk.kill()
        victim = log.rng.choice([path for path in log.disk.paths if log.disk.content(path)])
        log.disk.flip_bit(victim, log.rng.randrange(len(log.disk.content(victim))), log.rng.randrange(8))
        outcomes[judge(log, durable, victim)] += 1
    assert outcomes["short"] == 0
    assert min(outcomes["refused"], outcomes["whole"], outcomes["unreadable"]) > 10, outcomes


def judge(log: SimulatedLog, durable: dict[int, bytes], victim: Path) -> str:
    try:
        engine = open_log(log.disk)
        Reservation.open(DIRECTORY, log.disk)
    except (DamagedLog, StorageFault):
        return "refused"
    try:
        found = dict(read_everything(engine, LOG_ID))
    except MainstemError:
        return "unreadable"
    assert all(durable.get(offset) == value for offset, value in found.items())
    return "whole" if found == durable else "short"

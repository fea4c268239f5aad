"""Backups of running and stopped data directories, and what is restored from them."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

import pytest

from mainstem.model.errors import ConfigError, StorageFault
from mainstem.storage.backup import MANIFEST, backup, restore
from mainstem.storage.directory import DataDirectory
from mainstem.storage.engine import Engine
from mainstem.storage.engines import EngineOptions, open_engine
from mainstem.storage.inspection import engine_of, verify
from mainstem.storage.reservation import Reservation
from mainstem.storage.segment.engine import SegmentEngine
from mainstem.testing.frames import Writer, make_test_frame, read_everything

SMALL = EngineOptions(segment_bytes=4096)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = DataDirectory(tmp_path / "data")
    directory.release()
    return directory.path


def open_log(data: Path, log_id: int, engine: str = "segment") -> Engine:
    return open_engine(engine, data / "logs" / str(log_id), log_id, options=SMALL)


def fill(engine: Engine, log_id: int, frames: int) -> Writer:
    writer = Writer(engine, log_id)
    for number in range(frames):
        writer.append([b"%d" % number * 100])
    engine.sync()
    return writer


def test_a_stopped_directory_is_restored_as_it_was(data: Path, tmp_path: Path) -> None:
    expected = {}
    for log_id, engine in ((1, "segment"), (2, "rocksdb"), (3, "segment")):
        log = open_log(data, log_id, engine)
        fill(log, log_id, 40 * log_id)
        expected[log_id] = (engine, read_everything(log, log_id))
        log.close()
        Reservation.open(data / "logs" / str(log_id)).extend(5000)
    with sqlite3.connect(data / "metadata.sqlite") as metadata:
        metadata.execute("create table topic (name text)")
        metadata.execute("insert into topic values ('a/b')")
    report = backup(data, tmp_path / "backup")
    assert report.logs == 3
    restored = restore(tmp_path / "backup", tmp_path / "restored")
    assert (restored.stamp, restored.files) == (report.stamp, report.files)
    DataDirectory(tmp_path / "restored").release()
    for log_id, (engine, records) in expected.items():
        log = open_log(tmp_path / "restored", log_id, engine)
        assert read_everything(log, log_id) == records
        assert Reservation.open(tmp_path / "restored" / "logs" / str(log_id)).end_offset == 5000
        Writer(log, log_id).append([b"goes on"])
    with sqlite3.connect(tmp_path / "restored" / "metadata.sqlite") as metadata:
        assert metadata.execute("select name from topic").fetchall() == [("a/b",)]


def test_sealed_segments_are_links_and_the_one_being_written_is_a_copy(data: Path, tmp_path: Path) -> None:
    log = open_log(data, 1)
    writer = fill(log, 1, 40)
    backup(data, tmp_path / "backup")
    parts = log.stat().parts
    for part in parts:
        original, copy = data / "logs" / "1" / part.name, tmp_path / "backup" / "logs" / "1" / part.name
        assert original.samefile(copy) is part.sealed
    before = (tmp_path / "backup" / "logs" / "1" / parts[-1].name).read_bytes()
    writer.append([b"later"])
    assert (tmp_path / "backup" / "logs" / "1" / parts[-1].name).read_bytes() == before


def test_all_logs_are_cut_at_one_stamp(data: Path, tmp_path: Path) -> None:
    """Frames go to two logs in turn; whatever the stamp, the backup holds those up to it and no other."""
    logs = {log_id: open_log(data, log_id) for log_id in (1, 2)}
    ends = {1: 0, 2: 0}
    placed: list[tuple[int, int, int]] = []  # stamp, log, offset
    for stamp in range(100, 200):
        log_id = 1 + stamp % 2
        frame, ref = make_test_frame(log_id, ends[log_id], [b"x" * 300], stamp=stamp)
        logs[log_id].append([frame], [ref])
        placed.append((stamp, log_id, ends[log_id]))
        ends[log_id] += 1
    for log in logs.values():
        log.sync()
    for stamp in (99, 100, 133, 150, 250):
        backup(data, tmp_path / f"backup-{stamp}", stamp=stamp)
        restore(tmp_path / f"backup-{stamp}", tmp_path / f"restored-{stamp}")
        for log_id in logs:
            found = read_everything(open_log(tmp_path / f"restored-{stamp}", log_id), log_id)
            wanted = [offset for at, log, offset in placed if log == log_id and at <= stamp]
            assert [offset for offset, _ in found] == wanted


def test_nothing_beyond_the_stable_offset_is_copied(data: Path, tmp_path: Path) -> None:
    log = open_log(data, 1)
    fill(log, 1, 40)
    backup(data, tmp_path / "backup", ends={1: 25})
    restore(tmp_path / "backup", tmp_path / "restored")
    assert len(read_everything(open_log(tmp_path / "restored", 1), 1)) == 25


@pytest.mark.parametrize("engine", ["segment", "rocksdb"])
def test_a_backup_of_a_log_that_is_written_and_trimmed_is_a_whole_stretch_of_it(
    data: Path, tmp_path: Path, engine: str
) -> None:
    log = open_log(data, 1, engine)
    writer = fill(log, 1, 40)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            writer.append([b"%d" % writer.next_offset * 50])
            if writer.next_offset % 50 == 0:
                log.sync()
                log.trim(writer.next_offset - 300)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(5):
            before = log.stat()
            backup(data, tmp_path / str(number), engines={1: log})
            after = log.stat()
            restore(tmp_path / str(number), tmp_path / f"restored-{number}")
            found = read_everything(open_log(tmp_path / f"restored-{number}", 1, engine), 1)
            offsets = [offset for offset, _ in found]
            assert offsets == list(range(offsets[0], offsets[-1] + 1))
            assert before.start_offset <= offsets[0] <= after.start_offset  # whatever was trimmed meanwhile
            assert before.end_offset <= offsets[-1] + 1 <= after.end_offset
            assert verify(tmp_path / f"restored-{number}" / "logs" / "1").damage == []
    finally:
        stop.set()
        thread.join()


def test_only_a_complete_backup_is_restored(data: Path, tmp_path: Path) -> None:
    fill(open_log(data, 1), 1, 20)
    backup(data, tmp_path / "backup")
    with pytest.raises(ConfigError, match="not empty"):
        backup(data, tmp_path / "backup")
    with pytest.raises(ConfigError, match="not empty"):
        restore(tmp_path / "backup", data)
    victim = next((tmp_path / "backup" / "logs" / "1").glob("*.log"))
    os.truncate(victim, 10)
    with pytest.raises(StorageFault, match="damaged"):
        restore(tmp_path / "backup", tmp_path / "restored")
    (tmp_path / "backup" / MANIFEST).unlink()
    with pytest.raises(ConfigError, match="not a complete Mainstem backup"):
        restore(tmp_path / "backup", tmp_path / "again")


def test_a_directory_that_is_not_ours_is_not_backed_up(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(ConfigError, match="not a Mainstem data directory"):
        backup(tmp_path / "photos", tmp_path / "backup")


def test_a_rocksdb_log_in_use_is_backed_up_through_the_broker(data: Path, tmp_path: Path) -> None:
    fill(open_log(data, 1, "rocksdb"), 1, 5)
    directory = DataDirectory(data)
    with pytest.raises(ConfigError, match="in use"):
        backup(data, tmp_path / "backup")
    directory.release()


def test_a_part_that_a_rewrite_left_empty_ends_no_backup(data: Path, tmp_path: Path) -> None:
    log = open_log(data, 1)
    fill(log, 1, 60)
    emptied = log.stat().parts[1]
    log.replace(emptied, [])
    (data / "logs" / "1" / log.stat().parts[1].name).with_suffix(".index").unlink()  # a full disk had no room for it
    expected = read_everything(log, 1)
    assert expected[-1][0] == 59
    backup(data, tmp_path / "backup", stamp=1 << 62, ends={1: 60}, engines={1: log})
    log.close()
    restore(tmp_path / "backup", tmp_path / "restored")
    again = open_log(tmp_path / "restored", 1)
    assert read_everything(again, 1) == expected
    again.close()


@pytest.mark.parametrize("ends", [None, {1: 60}])
@pytest.mark.parametrize("part", [1, -1])
def test_what_is_damaged_is_copied_as_it_is_and_named(
    data: Path, tmp_path: Path, part: int, ends: dict[int, int] | None
) -> None:
    log = open_log(data, 1)
    fill(log, 1, 60)
    victim = log.stat().parts[part]
    path = data / "logs" / "1" / victim.name
    with path.open("r+b") as file:
        file.seek(victim.size_bytes // 2)
        file.write(b"\0" * 8)
    path.with_suffix(".index").unlink(missing_ok=True)
    report = backup(data, tmp_path / "backup", ends=ends)
    (told,) = report.damage
    assert victim.name in told
    assert restore(tmp_path / "backup", tmp_path / "restored").damage == report.damage
    found = verify(tmp_path / "restored" / "logs" / "1")
    assert found.records + sum(one.next_offset - one.offset for one in found.damage) == 60
    copied = (tmp_path / "restored" / "logs" / "1" / victim.name).read_bytes()
    assert copied == path.read_bytes()[: victim.size_bytes]


def test_a_damaged_end_that_was_acknowledged_is_not_cut_off(data: Path, tmp_path: Path) -> None:
    log = open_log(data, 1)
    fill(log, 1, 60)
    victim = log.stat().parts[-1]
    with (data / "logs" / "1" / victim.name).open("r+b") as file:
        file.seek(victim.size_bytes - 5)
        file.write(b"\0" * 5)
    assert len(backup(data, tmp_path / "running", ends={1: 60}).damage) == 1
    restore(tmp_path / "running", tmp_path / "restored")
    assert [one.durable for one in verify(tmp_path / "restored" / "logs" / "1").damage] == [True]
    assert backup(data, tmp_path / "stopped").damage == []  # as the tail of a crash would look


def test_parts_that_were_trimmed_and_are_only_held_for_a_reader_are_left_out(data: Path, tmp_path: Path) -> None:
    log = open_log(data, 1)
    assert isinstance(log, SegmentEngine)
    fill(log, 1, 60)
    first = log.stat().parts[0]
    assert log.hold(first)
    log.trim(first.end_offset)
    assert (data / "logs" / "1" / first.name).exists()
    expected = read_everything(log, 1)
    backup(data, tmp_path / "backup", ends={1: 60}, engines={1: log})
    restore(tmp_path / "backup", tmp_path / "restored")
    assert read_everything(open_log(tmp_path / "restored", 1), 1) == expected


def test_a_log_that_is_removed_meanwhile_is_left_out(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = {log_id: open_log(data, log_id, "rocksdb" if log_id == 3 else "segment") for log_id in (1, 2, 3)}
    for log_id, log in logs.items():
        fill(log, log_id, 20)

    def remove(directory: Path) -> str:
        log_id = int(directory.name)
        kind = engine_of(directory)
        if log_id > 1:
            logs[log_id].close()
            threading.Timer(0.1, directory.rename, (tmp_path / f"{log_id}.removed",)).start()
        return kind

    monkeypatch.setattr("mainstem.storage.backup.engine_of", remove)
    report = backup(data, tmp_path / "backup", ends=dict.fromkeys(logs, 20), engines=logs)
    assert [path.name for path in (tmp_path / "backup" / "logs").iterdir() if path.name != "2"] == ["1"]
    assert report.logs in (1, 2)  # what could be read of log 2 before it went is harmless


def test_a_log_made_since_the_stamp_does_not_end_a_backup(data: Path, tmp_path: Path) -> None:
    """A topic was moved to RocksDB while the first logs were copied."""
    old, new = open_log(data, 1), open_log(data, 2, "rocksdb")
    fill(old, 1, 20)
    fill(new, 2, 20)
    directory = DataDirectory(data)
    backup(data, tmp_path / "backup", ends={1: 20}, engines={1: old})
    directory.release()
    restore(tmp_path / "backup", tmp_path / "restored")
    assert read_everything(open_log(tmp_path / "restored", 2, "rocksdb"), 2) == []

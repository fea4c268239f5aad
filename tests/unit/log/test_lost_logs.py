"""Logs that no topic names: moved aside, kept while they hold records, brought back when the metadata knows them."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from mainstem.log.lost import LostLogs, holds_records
from mainstem.storage.disk import REAL_DISK
from tests.unit.log.kit import TestLog

DAY_MS = 86_400_000


@pytest.fixture
def lost(tmp_path: Path) -> LostLogs:
    (tmp_path / "logs").mkdir()
    return LostLogs(tmp_path / "logs", REAL_DISK)


def a_log(path: Path, *values: bytes) -> None:
    made = TestLog(path)
    for value in values:
        made.put(value)
    made.sync()
    made.log.close()


def eventually_gone(path: Path) -> bool:
    for thread in threading.enumerate():
        if thread.name.startswith("erase "):
            thread.join(10)
    return not path.exists()


def test_what_no_topic_names_is_moved_and_what_one_does_stays(tmp_path: Path, lost: LostLogs) -> None:
    a_log(tmp_path / "logs" / "1", b"known")
    a_log(tmp_path / "logs" / "2")
    lost.take({1}, 0)
    assert (tmp_path / "logs" / "1").exists() and not (tmp_path / "logs" / "2").exists()
    assert (tmp_path / "lost" / "2").exists()
    assert lost.highest_id() == 2


@pytest.mark.parametrize("engine", ["segment", "memory", "rocksdb"])
def test_a_log_without_records_is_deleted_after_its_time(tmp_path: Path, lost: LostLogs, engine: str) -> None:
    made = TestLog(tmp_path / "logs" / "2", engine=engine)
    if engine == "memory":
        (tmp_path / "logs" / "2").mkdir(exist_ok=True)
        made.put(b"gone with the process")
        made.sync()
    made.log.close()
    lost.take(set(), 1_000)
    lost.expire(7 * DAY_MS, 7 * DAY_MS)
    assert (tmp_path / "lost" / "2").exists(), "one second too early"
    lost.expire(7 * DAY_MS + 1_000, 7 * DAY_MS)
    assert eventually_gone(tmp_path / "lost" / "2")


@pytest.mark.parametrize("engine", ["segment", "rocksdb"])
def test_a_log_with_records_stays_and_comes_back_with_its_metadata(tmp_path: Path, lost: LostLogs, engine: str) -> None:
    place = tmp_path / "logs" / "3"
    made = TestLog(place, engine=engine)
    made.put(b"precious")
    made.sync()
    made.log.close()
    assert holds_records(place)
    lost.take(set(), 0)
    lost.expire(1_000 * DAY_MS, 7 * DAY_MS)
    assert eventually_gone(place) and (tmp_path / "lost" / "3").exists()
    lost.bring_back([3])
    again = TestLog(place, engine=engine)
    assert again.log.next_offset == 1
    assert lost.highest_id() == 0


def test_two_logs_of_one_number_are_both_kept(tmp_path: Path, lost: LostLogs) -> None:
    a_log(tmp_path / "logs" / "4", b"first")
    lost.take(set(), 0)
    a_log(tmp_path / "logs" / "4", b"second")
    lost.take(set(), 0)
    assert (tmp_path / "logs" / "4").exists() and (tmp_path / "lost" / "4").exists()
    lost.bring_back([4])
    assert (tmp_path / "logs" / "4").exists(), "what lies where it belongs is not replaced"
    shutil.rmtree(tmp_path / "lost")

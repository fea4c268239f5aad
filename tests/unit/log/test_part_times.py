"""A search by time passes over parts that are older, and is right whatever times records carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainstem.broker.topics import time_search
from mainstem.broker.topics.time_search import find_time_stored, newest_stored
from mainstem.codec.batch import decode_frames
from mainstem.log.log import Log
from mainstem.log.part_times import PartTimes
from mainstem.storage.engine import Slice
from tests.unit.log.kit import TestLog


def filled(made: TestLog, times: list[int], per_part: int = 10) -> None:
    for n, time_ms in enumerate(times):
        made.put(b"%d" % n, time_ms=time_ms)
        if n % 3 == 2:
            made.tick()
        if n % per_part == per_part - 1:
            made.tick()
            made.log.engine.roll()
    made.sync()


def test_the_first_record_at_or_after_a_time_is_found(tmp_path: Path) -> None:
    made = TestLog(tmp_path, segment_bytes=1 << 20)
    filled(made, [1000 + n * 10 for n in range(100)])
    assert find_time_stored(made.log, 1500, 0, 100) == (50, 1500)
    assert find_time_stored(made.log, 1501, 0, 100) == (51, 1510)
    assert find_time_stored(made.log, 0, 0, 100) == (0, 1000)
    assert find_time_stored(made.log, 5000, 0, 100) is None


def test_the_newest_record_is_found_without_decoding_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = TestLog(tmp_path, segment_bytes=1 << 20)
    filled(made, [1000 + n * 10 for n in range(99)] + [1500])
    made.log.times.learn()
    decoded: list[int] = []

    def noted(data: memoryview, *arguments: Any, **more: Any) -> Any:
        found = decode_frames(data, *arguments, **more)
        decoded.extend(record.offset for record in found)
        return found

    monkeypatch.setattr(time_search, "decode_frames", noted)
    assert newest_stored(made.log, 0, 100) == (98, 1980)
    assert len(decoded) <= 3
    assert newest_stored(made.log, 0, 90) == (89, 1890)
    assert newest_stored(made.log, 99, 100) == (99, 1500)
    assert newest_stored(made.log, 50, 50) is None


@given(times=st.lists(st.integers(0, 9), min_size=1, max_size=60), start=st.integers(0, 59), end=st.integers(1, 60))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_newest_record_is_the_first_of_those_with_the_highest_time(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], start: int, end: int
) -> None:
    made = TestLog(tmp_path_factory.mktemp("log"), segment_bytes=1 << 20)
    filled(made, times)
    inside = [(-time_ms, offset) for offset, time_ms in enumerate(times) if start <= offset < end]
    expected = min(inside, default=None)
    assert newest_stored(made.log, start, min(end, len(times))) == (expected and (expected[1], -expected[0]))


def test_old_parts_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = TestLog(tmp_path, segment_bytes=1 << 20)
    filled(made, [1000 + n * 10 for n in range(100)])
    made.log.times.learn()
    read: list[int] = []
    real = Log.read_now

    def noted(self: Log, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        read.append(offset)
        return real(self, offset, bytes_max, end_offset)

    monkeypatch.setattr(Log, "read_now", noted)
    assert find_time_stored(made.log, 1850, 0, 100) == (85, 1850)
    assert min(read) >= 80


def test_what_was_learned_is_kept_over_a_restart_and_looked_up_again_when_damaged(tmp_path: Path) -> None:
    made = TestLog(tmp_path / "log", segment_bytes=1 << 20)
    filled(made, list(range(30)))
    path = tmp_path / "times"
    times = PartTimes(made.log, path)
    assert times.due()
    times.learn()
    assert not times.due()
    again = PartTimes(made.log, path)
    assert not again.due()
    assert [again.newest(part) for part in made.log.engine.stat().parts] == [9, 19, 29]
    path.write_bytes(b"nonsense")
    assert PartTimes(made.log, path).due()


@given(
    times=st.lists(st.integers(-5, 50), min_size=1, max_size=60),
    asked=st.integers(-10, 60),
    start=st.integers(0, 60),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_times_in_any_order_are_searched_rightly(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], asked: int, start: int
) -> None:
    made = TestLog(tmp_path_factory.mktemp("log"), engine="memory")
    filled(made, times, per_part=7)
    expected = next(((n, t) for n, t in enumerate(times) if n >= start and t >= asked), None)
    assert find_time_stored(made.log, asked, start, len(times)) == expected

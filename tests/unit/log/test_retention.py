"""What a log may forget: by time, by size, on request, and never what somebody holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainstem.codec.batch import decode_frames
from mainstem.log import retention
from mainstem.log.log import Log
from mainstem.log.retention import NO_STAMP, Holds, Plan
from tests.unit.log.kit import TestLog

HOUR_MS = 3_600_000


def stored(log: Log) -> dict[int, bytes | None]:
    """All that lies in the engine, held or not."""
    found: dict[int, bytes | None] = {}
    offset = 0
    while (piece := log.engine.read(offset, 1 << 16)) is not None:
        found |= {r.offset: r.value for r in decode_frames(piece.data, log.id, inflated_bytes_max=1 << 20)}
        offset = piece.end_offset
    return found


def forget(made: TestLog, holds: Holds | None = None, *, ms: int = -1, size: int = -1) -> Plan:
    holds = holds or Holds()
    made.clock.advance_ms(1)
    now = made.clock.now_ns()
    decided = retention.plan(made.log, now_ns=now, retention_ms=ms, retention_bytes=size, holds=holds)
    if decided.changes(made.log):
        retention.apply(made.log, decided, holds)
    return decided


@pytest.fixture(params=["segment", "rocksdb", "memory"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestLog]:
    """Five parts of ten records each, an hour apart, and an open one."""
    made = TestLog(tmp_path, engine=request.param, shared=True, segment_bytes=1 << 20)
    for part in range(6):
        for n in range(10):
            made.put(b"%d" % (part * 10 + n) + b"." * 100, topic=b"t/%d" % part)
            made.tick()
        if part < 5:
            made.log.engine.roll()
            made.clock.advance_ms(HOUR_MS)
    made.sync()
    assert len(made.log.engine.stat().parts) == 6
    yield made
    made.log.close()


def stamp_of(made: TestLog, offset: int) -> int:
    piece = made.log.engine.read(offset, 1)
    assert piece is not None
    (record,) = decode_frames(
        piece.data, made.log.id, start_offset=offset, end_offset=offset + 1, inflated_bytes_max=1 << 20
    )
    return record.stamp


def test_time_drops_whole_parts_that_are_old_enough(made: TestLog) -> None:
    forget(made, ms=int(3.5 * HOUR_MS))
    assert made.log.start_offset == 20
    assert sorted(stored(made.log)) == list(range(20, 60))


def test_size_drops_the_oldest_parts_that_are_not_needed_for_it(made: TestLog) -> None:
    size = made.log.engine.stat().parts[0].size_bytes
    forget(made, size=int(3.5 * size))
    assert made.log.start_offset == 20, "four parts are still more than enough, three would not be"


def test_nothing_is_dropped_without_a_limit(made: TestLog) -> None:
    forget(made)
    assert len(stored(made.log)) == 60


def test_the_part_that_is_written_stays(made: TestLog) -> None:
    forget(made, ms=0, size=0)
    assert sorted(stored(made.log)) == list(range(50, 60))
    assert made.log.start_offset == 50


def test_what_a_queue_holds_stays_and_streams_move_on(made: TestLog) -> None:
    held_from = stamp_of(made, 25)
    decided = forget(made, Holds(from_stamp=held_from), ms=0)
    assert made.log.start_offset == 50, "for streams the start moves regardless"
    assert sorted(stored(made.log)) == list(range(20, 60))
    assert decided.held_bytes > 0


def test_a_hold_in_the_middle_of_a_parts_last_frame_keeps_it(tmp_path: Path) -> None:
    made = TestLog(tmp_path)
    for n in range(10):
        made.put(b"%d" % n)  # one frame of ten
    made.sync()
    made.log.engine.roll()
    made.put(b"later")
    made.sync()
    held_from = stamp_of(made, 7)
    for transaction_ns in (0, retention.TRANSACTION_NS_MAX):
        forget(made, Holds(from_stamp=held_from + transaction_ns), ms=0)
        assert 7 in stored(made.log)


def test_a_hold_that_ends_lets_its_parts_go(made: TestLog) -> None:
    forget(made, Holds(from_stamp=stamp_of(made, 25)), ms=0)
    forget(made, Holds(), ms=0)
    assert sorted(stored(made.log)) == list(range(50, 60))


def test_state_after_the_last_snapshot_stays(made: TestLog) -> None:
    forget(made, Holds(from_offset=15), ms=0)
    assert sorted(stored(made.log)) == list(range(10, 60))


def test_a_single_held_record_keeps_its_offset_and_little_more(tmp_path: Path) -> None:
    made = TestLog(tmp_path, segment_bytes=1 << 20)
    for part in range(3):
        for n in range(40):
            made.put(b"%d" % (part * 40 + n) + b"." * 100)
            made.tick()
        made.log.engine.roll()
    made.sync()
    before = made.log.engine.stat().size_bytes
    forget(made, Holds(offsets=[43, 44]), ms=0)
    assert sorted(stored(made.log)) == [43, 44], "rewritten to just what is held, at the same offsets"
    assert made.log.engine.stat().size_bytes < before / 10
    assert stored(made.log)[43] == b"43" + b"." * 100
    forget(made, Holds(offsets=[44]), ms=0)
    assert sorted(stored(made.log)) == [44], "half of what was kept is free: it is cut down again"
    forget(made, Holds(), ms=0)
    assert stored(made.log) == {}


def test_a_part_of_which_much_is_held_is_kept_as_it_is(made: TestLog) -> None:
    forget(made, Holds(offsets=[11, 12, 13]), ms=0)
    assert sorted(stored(made.log)) == [*range(10, 20), *range(50, 60)]


def test_topics_leave_the_dictionary_with_their_last_record(made: TestLog) -> None:
    assert made.log.index is not None
    decided = forget(made, ms=int(3.5 * HOUR_MS))
    gone = made.log.forget_topics(decided.forget_before)
    assert sorted(made.log.index.topics.name(number) for number in gone) == [b"t/0", b"t/1"]


def test_held_single_records_do_not_keep_the_index_from_forgetting(made: TestLog) -> None:
    """A retained message of years ago must not keep every topic since then in memory."""
    assert made.log.index is not None
    decided = forget(made, Holds(offsets=[3]), ms=0)
    gone = made.log.forget_topics(decided.forget_before)
    assert len(gone) == 5
    assert made.log.index.start_offset == 50
    assert 3 in stored(made.log)


def test_the_start_survives_a_restart(tmp_path: Path) -> None:
    kept: list[int] = []
    made = TestLog(tmp_path)
    made.log._keep_start = kept.append
    for _ in range(3):
        made.put(b"x")
        made.sync()
        made.log.engine.roll()
    forget(made, Holds(from_stamp=0), ms=0)
    assert made.log.start_offset == 3
    assert kept == [3]


def test_records_deleted_on_request_go_with_their_parts(made: TestLog) -> None:
    made.log.low_mark = 25
    made.log.move_start(25)
    forget(made)
    assert sorted(stored(made.log)) == list(range(20, 60))
    assert made.log.start_offset == 25


@given(
    held_offsets=st.sets(st.integers(0, 59), max_size=20),
    held_from=st.none() | st.integers(0, 59),
    from_offset=st.none() | st.integers(0, 59),
    age_h=st.none() | st.floats(0, 6),
    parts_kept=st.none() | st.floats(0, 6),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_held_survives_any_retention(
    tmp_path_factory: pytest.TempPathFactory,
    held_offsets: set[int],
    held_from: int | None,
    from_offset: int | None,
    age_h: float | None,
    parts_kept: float | None,
) -> None:
    made = TestLog(tmp_path_factory.mktemp("log"), engine="memory", shared=True)
    for n in range(60):
        made.put(b"%d" % n)
        if n % 3 == 2:
            made.tick()
        if n % 10 == 9:
            made.tick()
            made.log.engine.roll()
            made.clock.advance_ms(HOUR_MS)
    made.sync()
    size = made.log.engine.stat().parts[0].size_bytes
    holds = Holds(
        stamp_of(made, held_from) if held_from is not None else NO_STAMP,
        sorted(held_offsets),
        from_offset if from_offset is not None else NO_STAMP,
    )
    for _ in range(2):
        forget(
            made,
            holds,
            ms=int(age_h * HOUR_MS) if age_h is not None else -1,
            size=int(parts_kept * size) if parts_kept is not None else -1,
        )
        left = stored(made.log)
        must = set(held_offsets)
        must |= set(range(held_from, 60)) if held_from is not None else set()
        must |= set(range(from_offset, 60)) if from_offset is not None else set()
        assert must <= set(left)
        assert all(value == b"%d" % offset for offset, value in left.items())

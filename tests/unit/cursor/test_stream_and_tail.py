from __future__ import annotations

import pytest

from mainstem.cursor.stream import Start, StartingPoint, StreamCursor
from mainstem.cursor.tail import TailCursor
from mainstem.model.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", StartingPoint(Start.EARLIEST)),
        ("first", StartingPoint(Start.EARLIEST)),
        ("Latest", StartingPoint(Start.LATEST)),
        ("next", StartingPoint(Start.LATEST)),
        ("last", StartingPoint(Start.LAST)),
        ("42", StartingPoint(Start.OFFSET, 42)),
        ("ts:1769860800000", StartingPoint(Start.TIME, 1769860800000)),
        ("ts:2026-01-31T12:00:00Z", StartingPoint(Start.TIME, 1769860800000)),
        ("ts:2026-01-31T12:00:00", StartingPoint(Start.TIME, 1769860800000)),
        ("stamp:7", StartingPoint(Start.STAMP, 7000)),
    ],
)
def test_starting_points_are_read_as_written(text: str, expected: StartingPoint) -> None:
    assert StartingPoint.parse(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "yesterday", "ts:", "ts:soon", "stamp:", "stamp:x", "٣"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        StartingPoint.parse(text)


def test_commits_only_go_forward_and_reset_goes_anywhere() -> None:
    cursor = StreamCursor(5)
    assert cursor.commit(9, "m")
    assert not cursor.commit(9, "m")
    assert not cursor.commit(7)
    assert (cursor.position, cursor.read_to, cursor.lag(20)) == (9, 9, 11)
    cursor.reset(2)
    assert (cursor.position, cursor.read_to) == (2, 2)


def test_a_tail_remembers_the_first_record_it_missed_and_is_live_once_it_has_read_all() -> None:
    tail = TailCursor()
    tail.miss(10)
    tail.miss(11)
    assert (tail.live, tail.position) == (False, 10)
    tail.read(10)
    assert not tail.caught_up(12)
    tail.read(11)
    assert tail.caught_up(12)

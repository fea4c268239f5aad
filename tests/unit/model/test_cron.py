"""When schedules fire."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from mainstem.model.cron import next_fire
from mainstem.model.errors import InvalidArgument
from mainstem.model.times import time_ns, time_text

NOW = time_ns("2026-02-27T22:59:30.4Z")  # a Friday


@pytest.mark.parametrize(
    ("pattern", "due", "repeats"),
    [
        ("@at 2030-01-01T00:00:00Z", "2030-01-01T00:00:00Z", False),
        ("@at 2001-01-01T00:00:00+01:00", "2000-12-31T23:00:00Z", False),
        ("@every 1m30s", "2026-02-27T23:01:00Z", True),
        ("@hourly", "2026-02-27T23:00:00Z", True),
        ("@daily", "2026-02-28T00:00:00Z", True),
        ("@weekly", "2026-03-01T00:00:00Z", True),
        ("@monthly", "2026-03-01T00:00:00Z", True),
        ("@yearly", "2027-01-01T00:00:00Z", True),
        ("*/15 * * * * *", "2026-02-27T22:59:45Z", True),
        ("0 0 12 * * mon-thu", "2026-03-02T12:00:00Z", True),
        ("0 0 0 29 feb *", "2028-02-29T00:00:00Z", True),
        ("0 0 0 13 * fri", "2026-03-06T00:00:00Z", True),  # either day field, where neither is a star
        ("5,10 59 22 * * *", "2026-02-28T22:59:05Z", True),
    ],
)
def test_a_schedule_fires_at_the_first_time_its_pattern_allows(pattern: str, due: str, repeats: bool) -> None:
    found = next_fire(pattern, NOW, NOW)
    assert (time_text(found.due_ns), found.repeats) == (due, repeats)


def test_a_time_zone_moves_a_cron_pattern() -> None:
    found = next_fire("0 0 9 * * *", NOW, NOW, ZoneInfo("America/New_York"))
    assert time_text(found.due_ns) == "2026-02-28T14:00:00Z"


def test_times_that_went_by_unseen_are_skipped() -> None:
    assert next_fire("@hourly", time_ns("2020-01-01T00:00:00Z"), NOW).due_ns == time_ns("2026-02-27T23:00:00Z")


@pytest.mark.parametrize(
    "pattern",
    ["", "soon", "@every 1ms", "@every x", "@at x", "* * * * *", "60 * * * * *", "*/0 * * * * *", "a * * * * *"],
)
def test_what_is_no_schedule_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        next_fire(pattern, NOW, NOW)

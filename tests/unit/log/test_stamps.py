"""Stamps grow, whatever the clock does, and are never given twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.log.stamps import RESERVE_AHEAD_NS, Stamps
from mainstem.model.clock import ManualClock

SECOND = 1_000_000_000


class Kept:
    """What a power cut leaves: the last reservation that returned."""

    def __init__(self) -> None:
        self.end = 0
        self.writes = 0

    def reserve(self, end: int, clean: bool) -> None:
        assert end >= self.end or end >= 0
        self.end = end
        self.writes += 1


def test_a_stamp_is_wall_time_where_it_can_be() -> None:
    clock, kept = ManualClock(), Kept()
    stamps = Stamps(clock, reserved_end=0, reserve=kept.reserve)
    assert stamps.take(1) == clock.now_ns()
    clock.advance_ms(5)
    assert stamps.take(1) == clock.now_ns()


def test_a_clock_that_stands_still_or_goes_back_does_not_stop_them() -> None:
    clock, kept = ManualClock(), Kept()
    stamps = Stamps(clock, reserved_end=0, reserve=kept.reserve)
    first = stamps.take(3)
    assert stamps.take(1) == first + 3
    clock.advance_ms(-3_600_000)
    assert stamps.take(2) == first + 4
    assert stamps.take(1) == first + 6


def test_nothing_beyond_the_reservation_is_given() -> None:
    clock, kept = ManualClock(), Kept()
    stamps = Stamps(clock, reserved_end=0, reserve=kept.reserve)
    for ms in (0, 1, 4_000, 60_000, 1):
        clock.advance_ms(ms)
        assert stamps.take(1000) + 1000 <= kept.end


def test_a_background_extension_in_time_spares_the_loop_the_disk() -> None:
    clock, kept = ManualClock(), Kept()
    stamps = Stamps(clock, reserved_end=0, reserve=kept.reserve)
    stamps.take(1)
    assert not stamps.due()
    clock.advance_ms(6_000)
    stamps.take(1)
    assert stamps.due()
    stamps.extend()
    assert not stamps.due()
    writes = kept.writes
    clock.advance_ms(6_000)
    stamps.take(1)
    assert kept.writes == writes


def test_an_idle_broker_writes_nothing() -> None:
    clock, kept = ManualClock(), Kept()
    stamps = Stamps(clock, reserved_end=0, reserve=kept.reserve)
    clock.advance_ms(3_600_000)
    assert not stamps.due()
    assert kept.writes == 0


def test_clean_restarts_do_not_run_ahead_of_the_clock() -> None:
    clock, kept = ManualClock(), Kept()
    for _ in range(50):
        stamps = Stamps(clock, reserved_end=kept.end, reserve=kept.reserve)
        stamps.take(1)
        stamps.settle()
    assert kept.end - clock.now_ns() < SECOND


def test_a_failed_reservation_gives_nothing_out() -> None:
    clock = ManualClock()

    def refuse(end: int, clean: bool) -> None:
        raise OSError("no space")

    stamps = Stamps(clock, reserved_end=0, reserve=refuse)
    with pytest.raises(OSError, match="no space"):
        stamps.take(1)
    assert stamps.next == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(1, 100_000)),
            st.tuples(st.just("clock"), st.integers(-100_000, 100_000)),
            st.tuples(st.just("extend"), st.just(0)),
            st.tuples(st.just("crash"), st.just(0)),
            st.tuples(st.just("stop"), st.just(0)),
        ),
        max_size=60,
    )
)
def test_no_stamp_is_given_twice_over_crashes_stops_and_clock_steps(steps: list[tuple[str, int]]) -> None:
    clock, kept = ManualClock(), Kept()
    stamps = Stamps(clock, reserved_end=0, reserve=kept.reserve)
    last = -1
    for step, number in steps:
        if step == "take":
            first = stamps.take(number)
            assert first > last
            last = first + number - 1
        elif step == "clock":
            clock.advance_ms(number)
        elif step == "extend":
            stamps.extend()
        else:
            if step == "stop":
                stamps.settle()
            stamps = Stamps(clock, reserved_end=kept.end, reserve=kept.reserve)
    assert kept.end >= last + 1 or last == -1
    assert RESERVE_AHEAD_NS <= 60 * SECOND

"""Guessing is slow, and hurts nobody but the guesser."""

from __future__ import annotations

import pytest

from mainstem.broker.identity.throttle import ENTRIES_MAX, FORGET_MS, LATE_S_MAX, WAIT_MS_MAX, Throttle
from mainstem.model.errors import Overloaded


def refused(throttle: Throttle, address: str, user: str, now_ms: int) -> bool:
    try:
        throttle.check(address, user, now_ms)
    except Overloaded:
        return True
    return False


def test_each_failure_beyond_the_free_ones_doubles_the_wait() -> None:
    throttle, now = Throttle(3), 0
    waits = []
    for _ in range(12):
        began = now
        while refused(throttle, "a", "u", now):
            now += 500
        waits.append(now - began)
        throttle.failed("a", "u", now)
    assert waits[:6] == [0, 0, 0, 1_000, 2_000, 4_000]
    assert waits[-1] == WAIT_MS_MAX


def test_another_user_and_another_address_do_not_wait() -> None:
    throttle = Throttle(3)
    for _ in range(20):
        throttle.failed("a", "u", 0)
    assert refused(throttle, "a", "u", 0)
    assert not refused(throttle, "a", "v", 0)
    assert not refused(throttle, "b", "u", 0)


def test_who_tries_many_names_is_answered_late_when_he_fails() -> None:
    throttle = Throttle(3)
    late = [throttle.failed("a", f"u{n}", 0) for n in range(60)]
    assert late[:30] == [0] * 30
    assert late[-1] == LATE_S_MAX
    assert not refused(throttle, "a", "u1", 0)


def test_a_right_password_and_time_make_it_forget() -> None:
    throttle = Throttle(1)
    throttle.failed("a", "u", 0)
    assert refused(throttle, "a", "u", 0)
    throttle.succeeded("a", "u")
    assert not refused(throttle, "a", "u", 0)
    for _ in range(9):
        throttle.failed("a", "u", 0)
    assert not refused(throttle, "a", "u", FORGET_MS)


@pytest.mark.parametrize("count", [ENTRIES_MAX + 100])
def test_what_is_remembered_is_bounded_and_the_oldest_is_forgotten_first(count: int) -> None:
    throttle = Throttle(1)
    for n in range(count):
        throttle.failed("a", f"u{n}", n)
    assert not refused(throttle, "a", "u0", count)
    assert refused(throttle, "a", f"u{count - 1}", count)

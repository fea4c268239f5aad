"""Who gets a processor first: threads that answer, and those that yield to them."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from mainstem.storage.scheduling import (
    ATTRIBUTES,
    SLICE_NS,
    SYS_SCHED_SETATTR,
    answer_at_once,
    come_first,
    yield_to_others,
)

SYS_SCHED_GETATTR = SYS_SCHED_SETATTR + 1
LINUX = tuple(map(int, platform.release().split(".")[:2])) if sys.platform == "linux" else (0, 0)
has_slices = pytest.mark.skipif(
    LINUX < (6, 12) or not SYS_SCHED_SETATTR, reason="Linux has slices of a thread's own from 6.12 on"
)


def attributes() -> tuple[int, int]:
    """(niceness, slice in ns) of the calling thread."""
    found = ctypes.create_string_buffer(ATTRIBUTES.size)
    assert ctypes.CDLL(None).syscall(SYS_SCHED_GETATTR, 0, found, ATTRIBUTES.size, 0) == 0
    _, _, _, niceness, _, slice_ns, _, _ = ATTRIBUTES.unpack(found.raw)
    return niceness, slice_ns


def told(work: Callable[[], object]) -> object:
    """In a thread of its own."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@has_slices
def test_a_thread_that_answers_has_a_short_slice_and_those_it_starts_have_not() -> None:
    def work() -> list[object]:
        before = attributes()
        answer_at_once()
        return [before, attributes(), told(attributes)]

    before, own, of_started = told(work)  # type: ignore[misc]
    assert own == (before[0], SLICE_NS)
    assert of_started == before


@has_slices
def test_a_thread_that_comes_first_has_real_time_priority_or_at_least_a_short_slice() -> None:
    def work() -> list[object]:
        come_first()
        return [
            os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK,
            attributes()[1],
            told(lambda: os.sched_getscheduler(0)),
        ]

    policy, slice_ns, of_started = told(work)  # type: ignore[misc]
    assert policy == os.SCHED_FIFO or slice_ns == SLICE_NS
    assert of_started == os.SCHED_OTHER


@has_slices
def test_without_the_right_to_come_first_a_thread_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    def work() -> tuple[int, int]:
        come_first()
        return attributes()

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert told(work) == (attributes()[0], SLICE_NS)


@has_slices
def test_whoever_chose_a_priority_keeps_it() -> None:
    tell = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from tests.unit.storage.test_scheduling import answer_at_once, attributes, come_first
os.{{how}}
before = attributes(), os.sched_getscheduler(0)
answer_at_once()
come_first()
print((attributes(), os.sched_getscheduler(0)) == before)
"""
    ways = ["sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))"]
    if os.geteuid() == 0:
        ways.append("setpriority(os.PRIO_PROCESS, 0, -5)")
    for how in ways:
        done = subprocess.run([sys.executable, "-c", tell.format(how=how)], capture_output=True, text=True, check=True)
        assert done.stdout == "True\n", how


def test_a_machine_that_knows_no_slices_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.storage.scheduling.SYS_SCHED_SETATTR", 0)
    answer_at_once()
    monkeypatch.setattr("mainstem.storage.scheduling.SYS_SCHED_SETATTR", 99_999)  # no such call
    answer_at_once()


def test_a_process_that_yields_is_nicer_and_one_that_is_gone_is_no_reason_to_fail() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield_to_others(process.pid, 3)
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, niceness + 3)
        process.communicate(b"\n")
    yield_to_others(process.pid, 3)

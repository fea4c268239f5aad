"""How long the loop kept everybody waiting, and with what.

A thread of its own asks the loop for a sign of life every STALL_S. Where none has come by the next time, that is a stall:
the thread looks at what the loop's thread is doing then, and the innermost module of ours on its stack is the cause. So
every turn beyond 2 * STALL_S is seen; of shorter ones as many as they take time. From LOG_S on the log gets a line with
the stack. A turn that holds the interpreter all the while is looked at as soon as it lets go of it.

    mainstem_loop_stall_seconds{cause="protocols.kafka.handlers.produce"}   sum, count and the longest

How long the loop's thread waited for a core is known to the kernel (`schedstat`) and is no part of a stall. What is left may
be too short for one: then the machine ran something else, or the process was stopped (`elsewhere`). A callback that is
compiled leaves no frame on the stack: where none of ours is inside the loop, the cause is `compiled`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from types import FrameType

STALL_S = 0.02
LOG_S = 0.1
CAUSES_MAX = 64  # modules of ours that were ever a cause; more are counted as `others`
STACK_FRAMES = 12
ELSEWHERE = "elsewhere"
COMPILED = "compiled"
SCHEDSTAT_BYTES_MAX = 128
_OURS = "mainstem."
_LOOP = "asyncio.runners"  # what is further out on the stack only runs the loop

logger = logging.getLogger("mainstem.loop")


@dataclass(slots=True)
class Stalls:
    """Of one cause."""

    count: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0


class Watchdog:
    """Made on the loop's own thread; `start` and `stop` it there."""

    def __init__(self) -> None:
        self.stalls: dict[str, Stalls] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._thread: threading.Thread | None = None
        self._answered = threading.Event()
        self._answered_s = 0.0
        self._stopping = threading.Event()
        self._schedstat = -1  # file descriptor

    def start(self) -> None:
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        with contextlib.suppress(OSError):  # a kernel without it: all of a stall counts as ours
            self._schedstat = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._thread = threading.Thread(target=self._run_to_end, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._answered.set()
        if self._thread is not None:
            self._thread.join(1)

    def longest(self) -> tuple[str, float]:
        """Cause and seconds of the longest stall of our own making."""
        found = ((cause, one.longest_s) for cause, one in self.stalls.items() if cause != ELSEWHERE)
        return max(found, key=lambda one: one[1], default=("", 0.0))

    def _run_to_end(self) -> None:
        try:
            self._run()
        finally:
            if self._schedstat >= 0:
                os.close(self._schedstat)

    def _run(self) -> None:
        assert self._loop is not None
        while True:
            self._answered.clear()
            queued_s, asked_s = self._queued_s(), time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # the loop is closed
                return
            # Nothing wakes it when the answer comes: each wake-up takes the interpreter from the loop.
            if self._stopping.wait(STALL_S):
                return
            if not self._answered.is_set():
                self._follow(asked_s, queued_s)

    def _answer(self) -> None:
        """On the loop."""
        self._answered_s = time.monotonic()
        self._answered.set()

    def _queued_s(self) -> float:
        """How long the loop's thread has waited for a core so far."""
        if self._schedstat < 0:
            return 0.0
        try:
            return int(os.pread(self._schedstat, SCHEDSTAT_BYTES_MAX, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def _follow(self, asked_s: float, queued_s: float) -> None:
        """The loop does not answer: see why, and how long it takes."""
        cause, stack = self._look()
        while not self._answered.wait(LOG_S - STALL_S) and not self._stopping.is_set():
            if cause == COMPILED:  # it was about to call something when it was looked at
                cause, stack = self._look()
        if self._stopping.is_set():
            return
        took_s, queued_s = self._answered_s - asked_s, self._queued_s() - queued_s
        if took_s - queued_s < STALL_S:
            cause, stack = ELSEWHERE, ""
        else:
            took_s -= queued_s
        self._note(cause, took_s)
        if took_s >= LOG_S:
            level = logging.INFO if cause == ELSEWHERE else logging.WARNING
            logger.log(level, "the loop kept all clients waiting for %.0f ms in %s%s", took_s * 1000, cause, stack)

    def _note(self, cause: str, took_s: float) -> None:
        if cause not in self.stalls and len(self.stalls) >= CAUSES_MAX:
            cause = "others"
        stalls = self.stalls.setdefault(cause, Stalls())
        stalls.count += 1
        stalls.seconds += took_s
        stalls.longest_s = max(stalls.longest_s, took_s)

    def _look(self) -> tuple[str, str]:
        frame = sys._current_frames().get(self._thread_id)
        cause = cause_of(frame)
        stack = "".join(traceback.format_stack(frame)[-STACK_FRAMES:]) if frame is not None else ""
        return cause, f":\n{stack}" if cause != COMPILED else ""


def cause_of(frame: FrameType | None) -> str:
    """The innermost module of ours; what only runs the loop is none."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == _LOOP:
            break
        if name.startswith(_OURS):
            return str(name.removeprefix(_OURS))
        frame = frame.f_back
    return COMPILED

"""When the whole machine stood still: `python -m bench.standstill CORE`.

A virtual machine is given so much of its host's processors in each tenth of a second; once it has used that up, all its
cores stand still until the next, for up to 35 ms, beside whatever runs in it. So on each core a process of highest priority
wakes up every two milliseconds and notes when it was late. What all of them noted at once was the host: no program keeps
every core from such a process at the same moment. That part of a wait says nothing about a server, and is taken off it.

Each process says when it begins. Once its input is closed it prints the beginning and end of each wait, in seconds of the
monotonic clock, which is the same in all processes.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

PERIOD_S = 0.002
LATE_S = 0.001  # and more is a standstill
Spans = list[tuple[float, float]]


@dataclass(slots=True)
class Wait:
    due_s: float  # on the monotonic clock
    ms: float


@dataclass(slots=True)
class Standstill:
    """Spans in which no core ran."""

    spans: Spans = field(default_factory=list)
    watched_s: float = 0.0

    @property
    def share(self) -> float:
        return sum(end - begin for begin, end in self.spans) / self.watched_s if self.watched_s else 0.0

    def counted(self, waits: list[Wait]) -> list[float]:
        """Milliseconds of each, without what of it stood still."""
        return [max(0.0, wait.ms - 1000 * self._within(wait.due_s, wait.due_s + wait.ms / 1000)) for wait in waits]

    def _within(self, begin_s: float, end_s: float) -> float:
        return sum(max(0.0, min(end, end_s) - max(begin, begin_s)) for begin, end in self.spans)


@contextlib.contextmanager
def watched() -> Iterator[Standstill]:
    """Watch as long as the block lasts; the spans are there after it."""
    found = Standstill()
    if not hasattr(os, "sched_setaffinity"):
        yield found
        return
    with contextlib.ExitStack() as stack:
        watchers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "bench.standstill", str(core)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            for core in sorted(os.sched_getaffinity(0))
        ]
        for watcher in watchers:
            assert watcher.stdout is not None
            watcher.stdout.readline()
        began_s = time.monotonic()
        try:
            yield found
        finally:
            found.watched_s = time.monotonic() - began_s
            noted = [_read_spans(watcher.communicate()[0].decode()) for watcher in watchers]
    found.spans = together(noted)


def together(noted: list[Spans]) -> Spans:
    """What is within a span of every list."""
    common = noted[0]
    for spans in noted[1:]:
        pairs = [(max(a, c), min(b, d)) for a, b in common for c, d in spans if a < d and c < b]
        common = sorted(pairs)
    return common


def _read_spans(text: str) -> Spans:
    numbers = [float(one) for one in text.split()]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def main() -> int:
    os.sched_setaffinity(0, {int(sys.argv[1])})
    with contextlib.suppress(PermissionError):  # then it is late beside others, too, but not on all cores at once
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
    spans: Spans = []
    print("begins", flush=True)
    due = time.monotonic()
    while not select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
        now = time.monotonic()
        if now - due > LATE_S:
            spans.append((due, now))  # perhaps for a little longer: since the last look
        due = max(due + PERIOD_S, now)
    print(*(f"{begin:.6f} {end:.6f}" for begin, end in spans))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a run is measured by, whatever the protocol: what arrived, how late, the server's CPU by its process, and our own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from mainstem.server.cli.failures import Refused

PIPELINED = 64 * 1024  # bytes of one send, where nothing else is asked for

Tell = Callable[[float, int], None]  # seconds since the start, and messages until then


@dataclass(frozen=True, slots=True)
class Result:
    """One run. Rates are of deliveries; latencies count from the intended time of sending."""

    workload: str
    seconds: float
    rate: float
    lost: int
    duplicated: int
    reordered: int
    server_cpu_us: float | None = None  # per delivered message
    generator_cpu_share: float = 0.0
    p50_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    server_cpu_share: float | None = None  # of one core


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a run is, whose CPU it reports, and who is told of its progress."""

    seconds: float
    warm_seconds: float = 0.5
    drain_seconds: float = 20.0  # at most, for what is still on its way
    messages: int = 0  # ends it earlier
    pid: int | None = None
    tell: Tell | None = None


def drive(name: str, load: Any, timing: Timing) -> Result:
    """Run a generator whose peers are connected."""
    meter = CpuMeter(timing.pid)
    meter.start()
    try:
        done = load.run(timing.seconds, timing.drain_seconds, timing.warm_seconds, timing.messages, timing.tell)
    except ConnectionError as error:
        raise Refused(f"{name}: {error}", fix="the broker's log may say why") from error
    server_seconds = meter.server_seconds()
    count = done["received_total"] or done["sent_total"]
    return Result(
        name,
        done["seconds"],
        done["received"] / done["seconds"],
        done["lost"],
        done["duplicated"],
        done["reordered"],
        None if server_seconds is None or not count else server_seconds * 1e6 / count,
        meter.own_share(),
        load.percentile_us(0.5),
        load.percentile_us(0.99),
        load.percentile_us(0.999),
        None if server_seconds is None else server_seconds / done["whole_seconds"],
    )


class CpuMeter:
    """CPU seconds of a process tree and of ourselves, from `start` on."""

    def __init__(self, pid: int | None) -> None:
        self._process = psutil.Process(pid) if pid else None
        self._server = self._own = self._wall = 0.0

    def start(self) -> None:
        self._server, self._own, self._wall = self._server_seconds(), time.process_time(), time.monotonic()

    def server_seconds(self) -> float | None:
        return self._server_seconds() - self._server if self._process is not None else None

    def own_share(self) -> float:
        passed = time.monotonic() - self._wall
        return (time.process_time() - self._own) / passed if passed else 0.0

    def _server_seconds(self) -> float:
        if self._process is None:
            return 0.0
        total = 0.0
        for process in (self._process, *self._process.children(recursive=True)):
            times = process.cpu_times()
            total += times.user + times.system
        return total


def resident_bytes(pid: int) -> int:
    """Memory of a process tree."""
    process = psutil.Process(pid)
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))


def idle_bytes_of(connect: Callable[[contextlib.ExitStack], object], pid: int, connections: int) -> float:
    """Memory of the server for each connection that is there and does nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(50):  # whatever is allocated once is not the connections'
            connect(stack)
        time.sleep(0.5)
        before = resident_bytes(pid)
        for _ in range(connections):
            connect(stack)
        time.sleep(1.5)
        return (resident_bytes(pid) - before) / connections


def pin(core: int, pid: int = 0) -> None:
    """Keep a process (0: ourselves), all its threads, on one core."""
    if pid == 0:
        os.sched_setaffinity(0, {core})
        return
    for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        for thread in one.threads():
            os.sched_setaffinity(thread.id, {core})

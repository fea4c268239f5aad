"""What a run is measured by, whatever the protocol: the server's CPU by its process, our own, and the machine's name."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass

import psutil


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


def pin(core: int, pid: int = 0) -> None:
    """Keep a process (0: ourselves), all its threads, on one core."""
    if pid == 0:
        os.sched_setaffinity(0, {core})
        return
    for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        for thread in one.threads():
            os.sched_setaffinity(thread.id, {core})


def machine() -> str:
    model = platform.processor() or platform.machine()
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory_gib = psutil.virtual_memory().total / (1 << 30)
    return f"{model}, {psutil.cpu_count()} cores, {memory_gib:.0f} GiB, Linux {platform.release()}"


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readlines()
    except OSError:
        return []

"""Rates for people: the counters once a second, kept for ten minutes. Charts and `top` read them; metrics do not."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from mainstem.admin.answers.system import Series
from mainstem.admin.cursors import lag_max
from mainstem.admin.running import Running

SAMPLE_S = 1.0
SAMPLES_MAX = 600
LAG_S = 5.0
COUNTERS = ("messages_in", "messages_out", "bytes_in", "bytes_out", "messages_dropped")


@dataclass(slots=True)
class Sample:
    """Per second, by protocol and counter; gauges as they stood."""

    time_s: float
    rates: dict[str, dict[str, float]] = field(default_factory=dict)
    connections: dict[str, int] = field(default_factory=dict)
    loop_lag_ms: float = 0.0


class Rates:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._last: dict[str, dict[str, int]] = {}
        self._last_s = time.monotonic()
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self.loop_lag_ms = 0.0
        self.loop_lag_max_ms = 0.0
        self._lag_max, self._lag_due_s = 0, 0.0
        self._waiting: set[asyncio.Event] = set()

    async def run(self) -> None:
        """Sample for ever. How late each wake-up comes is the lag of the loop."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + SAMPLE_S
            await asyncio.sleep(SAMPLE_S)
            self.loop_lag_ms = max(0.0, (loop.time() - due) * 1000)
            self.loop_lag_max_ms = max(self.loop_lag_max_ms, self.loop_lag_ms)
            self.sample()
            for event in self._waiting:
                event.set()

    def sample(self) -> None:
        now_s = time.monotonic()
        elapsed_s = max(now_s - self._last_s, 1e-3)
        totals = self.totals()
        sample = Sample(time.time(), loop_lag_ms=self.loop_lag_ms)
        for protocol, counters in totals.items():
            before = self._last.get(protocol, counters)
            sample.rates[protocol] = {name: (counters[name] - before[name]) / elapsed_s for name in COUNTERS}
            sample.connections[protocol] = counters["connections"]
        self._last, self._last_s = totals, now_s
        self.samples.append(sample)

    def totals(self) -> dict[str, dict[str, int]]:
        """The plain counters of all listeners, by protocol."""
        found: dict[str, dict[str, int]] = {}
        for listener, protocol in self._running.protocols.items():
            server = self._running.servers.get(listener)
            if server is None:
                continue
            into = found.setdefault(protocol, dict.fromkeys((*COUNTERS, "connections", "connections_total"), 0))
            for name in into:
                into[name] += getattr(server.counters, name, 0)
            if listener == "mqtt":  # both listeners' clients are counted by what they share
                into["messages_out"], into["messages_dropped"] = server.service.delivered()
        return found

    def lag_max(self) -> int:
        """Counted at most every LAG_S, however many pages ask."""
        now_s = time.monotonic()
        if now_s >= self._lag_due_s:
            self._lag_due_s = now_s + LAG_S
            self._lag_max = lag_max(self._running)
        return self._lag_max

    def latest(self) -> Sample:
        return self.samples[-1] if self.samples else Sample(time.time())

    async def next(self) -> Sample:
        """The next sample, when it is taken."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            await event.wait()
        finally:
            self._waiting.discard(event)
        return self.latest()

    def series(self) -> Series:
        """For the chart: time, then messages in and out per protocol."""
        protocols = sorted({protocol for sample in self.samples for protocol in sample.rates})
        return {
            "time": [round(sample.time_s, 1) for sample in self.samples],
            "series": {
                f"{way}.{protocol}": [
                    round(rates[f"messages_{way}"], 1) if (rates := sample.rates.get(protocol)) is not None else None
                    for sample in self.samples
                ]
                for protocol in protocols
                for way in ("in", "out")
            },
        }

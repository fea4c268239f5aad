"""How long the parts of a take or of a hand-over took: clients wait for their sum, so each is told in the log.

CPU time of the process is told beside the sum: where the two differ somebody else was waited for.
"""

from __future__ import annotations

import time


class Phases:
    def __init__(self) -> None:
        self._began_s = self._last_s = time.monotonic()
        self._began_cpu_s = time.process_time()
        self._parts: list[str] = []

    def end(self, name: str) -> None:
        """What was done since the last one ended."""
        now_s = time.monotonic()
        self._parts.append(f"{name} {now_s - self._last_s:.2f}")
        self._last_s = now_s

    def __str__(self) -> str:
        cpu_s = time.process_time() - self._began_cpu_s
        return f"{self._last_s - self._began_s:.2f} s ({', '.join(self._parts)}; {cpu_s:.2f} s of CPU)"

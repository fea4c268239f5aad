"""What running pipelines have told of themselves, for the console. In memory only: whoever runs tells again."""

from __future__ import annotations

from typing import Any

from mainstem.model.clock import Clock
from mainstem.model.errors import InvalidArgument

PIPELINES_MAX = 1_000
FLOWS_MAX = 100
QUIET_MS = 60_000  # without a word for so long it does not run any more


class Pipelines:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[str, tuple[int, list[dict[str, Any]]]] = {}

    def tell(self, name: str, flows: list[dict[str, Any]]) -> None:
        if not name or len(name) > 64 or len(flows) > FLOWS_MAX:
            raise InvalidArgument(f"a pipeline has a name of at most 64 characters and at most {FLOWS_MAX} flows")
        self._told.pop(name, None)
        while len(self._told) >= PIPELINES_MAX:
            del self._told[next(iter(self._told))]
        self._told[name] = (self._now_ms(), flows)

    def listed(self) -> list[dict[str, Any]]:
        now = self._now_ms()
        return [
            {"name": name, "quiet_ms": now - when, "running": now - when < QUIET_MS and _runs(flows), "flows": flows}
            for name, (when, flows) in sorted(self._told.items())
        ]

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000


def _runs(flows: list[dict[str, Any]]) -> bool:
    return any(flow.get("state") not in ("done", "failed", "stopped") for flow in flows)

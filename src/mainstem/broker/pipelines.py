"""What running pipelines have told of themselves, for the console. In memory only: whoever runs tells again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mainstem.model.clock import Clock
from mainstem.model.errors import InvalidArgument

PIPELINES_MAX = 1_000  # of a namespace
FLOWS_MAX = 100
NAME_CHARACTERS_MAX = 64
TEXT_CHARACTERS_MAX = 2_000
QUIET_MS = 60_000  # without a word for so long it does not run any more
ENDED = ("done", "failed", "stopped")
# What is kept of a flow; anything else it tells is nobody's business here.
FACTS: dict[str, type[str] | type[int] | type[float]] = {
    "flow": str,
    "state": str,
    "batch": int,
    "batch_ms": int,
    "batch_end_ms": int,
    "rows": int,
    "rows_total": int,
    "rows_per_s": float,
    "bad_total": int,
    "lag": int,
    "restarts": int,
    "error": str,
    "reads": str,  # a filter a line: for others, who look for loops
    "writes": str,
}


class Pipelines:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[tuple[str, str], tuple[int, list[dict[str, Any]]]] = {}  # by namespace and name

    def tell(self, name: str, flows: Any, namespace: str = "/") -> None:
        if not name or len(name) > NAME_CHARACTERS_MAX:
            raise InvalidArgument(f"a pipeline's name has 1 to {NAME_CHARACTERS_MAX} characters")
        if not isinstance(flows, list) or len(flows) > FLOWS_MAX or not all(isinstance(one, dict) for one in flows):
            raise InvalidArgument(f"a pipeline's flows are a list of at most {FLOWS_MAX} objects")
        kept = [_facts(one) for one in flows]
        self._told.pop((namespace, name), None)
        told = [key for key in self._told if key[0] == namespace]  # a namespace pushes out only its own
        for key in told[: max(0, len(told) + 1 - PIPELINES_MAX)]:
            del self._told[key]
        self._told[namespace, name] = (self._now_ms(), kept)

    def forget_namespace(self, name: str) -> Iterator[None]:
        for key in [one for one in self._told if one[0] == name]:
            del self._told[key]
            yield

    def listed(self, namespace: str = "/") -> list[dict[str, Any]]:
        now = self._now_ms()
        return [
            {"name": name, "quiet_ms": now - when, "running": now - when < QUIET_MS and _runs(flows), "flows": flows}
            for (owner, name), (when, flows) in sorted(self._told.items())
            if owner == namespace
        ]

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000


def _facts(flow: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in FACTS.items():
        value = flow.get(name, kind())
        try:
            found[name] = value[:TEXT_CHARACTERS_MAX] if isinstance(value, str) and kind is str else kind(value)
        except (TypeError, ValueError, OverflowError):
            raise InvalidArgument(f"{name} of a flow must be {'text' if kind is str else 'a number'}") from None
    return found


def _runs(flows: list[dict[str, Any]]) -> bool:
    return any(flow["state"] not in ENDED for flow in flows)

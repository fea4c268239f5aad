"""Traces that were taken: what happened to one record and when, newest last, at most TRACES_MAX of them.

A trace is found by its record's stamp, by its trace id (a `traceparent` header's, or one made from the stamp), by topic, key
or text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

TRACES_MAX = 2_000
STEPS_MAX = 64
TEXT_BYTES_MAX = 256
# version - trace id - span id - flags (W3C Trace Context)
TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Step:
    """At `at_ns` (wall clock), known to `within_us`: what became of it, and with whom."""

    at_ns: int
    what: str  # stored | durable | delivered | taken | acked | released | dead | committed
    who: str = ""
    kind: str = ""  # of whom: queue | session | subscription | group | consumer
    protocol: str = ""
    attempts: int = 0
    within_us: int = 0


@dataclass(slots=True)
class Trace:
    stamp: int
    namespace: str
    topic: str
    log: int
    offset: int
    origin: str
    client: str = ""
    key: str = ""
    size: int = 0
    trace_id: str = ""
    parent_id: str = ""  # of the publisher's own span
    steps: list[Step] = field(default_factory=list)
    open: bool = True

    def add(self, step: Step) -> None:
        if len(self.steps) < STEPS_MAX:
            self.steps.append(step)

    def to_document(self) -> dict[str, Any]:
        return {
            "stamp": self.stamp,
            "trace_id": self.trace_id,
            "namespace": self.namespace,
            "topic": self.topic,
            "log": self.log,
            "offset": self.offset,
            "protocol": self.origin,
            "client": self.client,
            "key": self.key,
            "size": self.size,
            "open": self.open,
            "steps": [
                {
                    "at_ns": one.at_ns,
                    "after_us": (one.at_ns - self.stamp) // 1_000,
                    "within_us": one.within_us,
                    "what": one.what,
                    "who": one.who,
                    "kind": one.kind,
                    "protocol": one.protocol,
                    "attempts": one.attempts,
                }
                for one in sorted(self.steps, key=lambda one: one.at_ns)
            ],
        }


def trace_ids(traceparent: bytes | None, stamp: int) -> tuple[str, str]:
    """Trace id and the publisher's span id; where it sent none, an id that the stamp gives."""
    found = TRACEPARENT.fullmatch(traceparent or b"")
    if found is None or not found[1].strip(b"0"):
        return f"{stamp:032x}", ""
    return found[1].decode(), found[2].decode()


class Traces:
    def __init__(self) -> None:
        self._by_stamp: dict[int, Trace] = {}

    def __len__(self) -> int:
        return len(self._by_stamp)

    def add(self, trace: Trace) -> None:
        self._by_stamp[trace.stamp] = trace
        while len(self._by_stamp) > TRACES_MAX:
            del self._by_stamp[next(iter(self._by_stamp))]

    def restore(self, older: Sequence[Trace]) -> None:
        """What was kept over a restart, before those that were begun since."""
        begun = self._by_stamp
        self._by_stamp = {}
        for trace in (*(one for one in older if one.stamp not in begun), *begun.values()):
            self.add(trace)

    def get(self, stamp: int) -> Trace | None:
        return self._by_stamp.get(stamp)

    def newest(self) -> Iterator[Trace]:
        return iter(reversed(list(self._by_stamp.values())))

    def find(self, namespace: str, *, topic: str = "", key: str = "", trace_id: str = "") -> Iterator[Trace]:
        """Newest first. A trace id may be a whole `traceparent`."""
        parts = trace_id.split("-")
        wanted = parts[1] if len(parts) == 4 else trace_id
        for trace in self.newest():
            if trace.namespace != namespace or (topic and trace.topic != topic) or (key and trace.key != key):
                continue
            if not wanted or trace.trace_id == wanted or str(trace.stamp) == wanted:
                yield trace

"""Messages of a stream with a time to live of their own: `Nats-TTL` in seconds, a duration like `1h30m`, or `never`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

EXPIRING_MAX = 1_000_000  # messages of one stream that wait for their end
NS_PER_S = 1_000_000_000
TTL_NS_MAX = 1 << 62  # 146 years: what is added to a moment of ours still fits
_PART = re.compile(rb"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s|m|h)")
_WHOLE = re.compile(rb"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|ms|s|m|h))+")
_UNITS = {b"ns": 1, b"us": 1_000, b"ms": 1_000_000, b"s": NS_PER_S, b"m": 60 * NS_PER_S, b"h": 3_600 * NS_PER_S}
NEVER = b"never"


def ttl_ns(text: bytes) -> int | None:
    """0 for never; None where it is not a time to live. Less than a second is none."""
    if text == NEVER:
        return 0
    if text.isdigit() and len(text) < 12:
        found: float = int(text) * NS_PER_S
    elif _WHOLE.fullmatch(text):
        found = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    else:
        return None
    return int(found) if NS_PER_S <= found < TTL_NS_MAX else None


def ttl_of(block: bytes | None) -> int:
    """Of a header block; 0 where it says none."""
    if not block or b"\r\nNats-TTL:" not in block:
        return 0
    return ttl_ns(block.partition(b"\r\nNats-TTL:")[2].partition(b"\r\n")[0].strip()) or 0


class Expiring:
    """When which offset ends, the soonest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def full(self) -> bool:
        return len(self._heap) >= EXPIRING_MAX

    def next_due_ns(self) -> int:
        """0: none ends."""
        return self._heap[0][0] if self._heap else 0

    def all(self) -> list[tuple[int, int]]:
        """Offset and end of each."""
        return [(offset, due_ns) for due_ns, offset in self._heap]

    def add_all(self, found: Iterable[tuple[int, int]]) -> None:
        """End and offset of each."""
        self._heap.extend(found)
        heapify(self._heap)

    def add(self, offset: int, due_ns: int) -> None:
        heappush(self._heap, (due_ns, offset))

    def due(self, now_ns: int, end: int) -> list[int]:
        """Those whose time has come; none from `end` on, which is not durable yet."""
        found, later = [], []
        while self._heap and self._heap[0][0] <= now_ns:
            one = heappop(self._heap)
            if one[1] < end:
                found.append(one[1])
            else:
                later.append(one)
        for one in later:
            heappush(self._heap, one)
        return found

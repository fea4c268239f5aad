"""The stream cursor: one committed position that its consumer moves, and the words for where to start. Pure.

earliest | first | beginning        the oldest record still there
latest | next | end                 what is written from now on
last                                the newest batch that is there
1234                                an offset (only where everything lies in one log)
ts:2026-01-31T12:00:00Z | ts:1769860800000      the first record at or after a time (RFC 3339, or epoch ms)
stamp:1769860800000000              a position in microseconds, over any number of logs
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from mainstem.model.errors import InvalidArgument


class Start(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    LAST = "last"
    OFFSET = "offset"
    TIME = "time"  # value in ms
    STAMP = "stamp"  # value in ns


_WORDS = {
    "earliest": Start.EARLIEST,
    "first": Start.EARLIEST,
    "beginning": Start.EARLIEST,
    "latest": Start.LATEST,
    "next": Start.LATEST,
    "end": Start.LATEST,
    "last": Start.LAST,
}


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Where a reader begins; `value` is an offset, milliseconds or nanoseconds, as `start` says."""

    start: Start
    value: int = 0

    @classmethod
    def parse(cls, text: str) -> StartingPoint:
        word = text.strip()
        if (start := _WORDS.get(word.lower())) is not None:
            return cls(start)
        kind, colon, rest = word.partition(":")
        if not colon and _is_number(word):
            return cls(Start.OFFSET, int(word))
        if kind == "ts":
            return cls(Start.TIME, _milliseconds(rest))
        if kind == "stamp" and _is_number(rest):
            return cls(Start.STAMP, int(rest) * 1000)
        raise InvalidArgument(
            f"starting point {text!r} is none of earliest, latest, last, <offset>, ts:<time>, stamp:<microseconds>",
            fix="earliest",
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _milliseconds(text: str) -> int:
    if _is_number(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"time {text!r} is neither RFC 3339 nor epoch milliseconds", fix="ts:2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


class StreamCursor:
    """A position that only its consumer moves: forward by `commit`, anywhere by `reset`."""

    __slots__ = ("metadata", "position", "read_to")

    def __init__(self, position: int) -> None:
        self.position = position  # committed: where to go on after a restart
        self.read_to = position  # handed out so far
        self.metadata = ""

    def read(self, position: int) -> None:
        """Everything below `position` was handed out."""
        self.read_to = max(self.read_to, position)

    def commit(self, position: int, metadata: str = "") -> bool:
        """Record progress; going back needs `reset`. False if nothing changed."""
        if position < self.position:
            return False
        changed = position != self.position or metadata != self.metadata
        self.position, self.metadata = position, metadata
        self.read(position)
        return changed

    def reset(self, position: int) -> None:
        """Read from `position` again, or from further on."""
        self.position = self.read_to = position

    def lag(self, head: int) -> int:
        """Distance to `head` in positions; equal to records only where positions are dense."""
        return max(0, head - self.position)

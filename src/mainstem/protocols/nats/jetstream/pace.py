"""When a consumer's next message may leave: not while it is paused, not faster than its rate limit, and, where it
replays as it was, with the time between messages that was between them when they were stored."""

from __future__ import annotations

from typing import Any

from mainstem.model.record import Record
from mainstem.protocols.nats.jetstream.words import time_ns

NS_PER_S = 1_000_000_000


def pause_end_ns(config: dict[str, Any]) -> int:
    """0: it was never paused."""
    text = config.get("pause_until")
    return time_ns(text) if text else 0


class Pace:
    def __init__(self, config: dict[str, Any], replay_end: int) -> None:
        """`replay_end`: up to this offset messages are history, and replayed as it was."""
        self._replay_end = replay_end
        self._last = (0, 0)  # of the last message: when it was stored, and when it left
        self._rate_free_ns = 0
        self.change(config)

    def change(self, config: dict[str, Any]) -> None:
        self.paused_until_ns = pause_end_ns(config)
        self._bits_per_s: int = config.get("rate_limit_bps", 0)
        self._replays = config["replay_policy"] == "original"

    @property
    def free(self) -> bool:
        """Whether nothing holds it back, ever."""
        return not (self.paused_until_ns or self._bits_per_s or self._replays)

    def wait_ns(self, record: Record, now_ns: int) -> int:
        """0: it may leave."""
        due = max(self.paused_until_ns, self._rate_free_ns)
        stored, left = self._last
        if self._replays and left and record.offset < self._replay_end:
            due = max(due, left + record.stamp - stored)
        return max(0, due - now_ns)

    def sent(self, record: Record, size: int, now_ns: int) -> None:
        self._last = (record.stamp, now_ns)
        if self._bits_per_s:
            begin = max(now_ns, self._rate_free_ns)
            self._rate_free_ns = begin + size * 8 * NS_PER_S // self._bits_per_s

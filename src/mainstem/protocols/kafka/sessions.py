"""Fetch sessions (KIP-227): the partitions a client fetches are remembered, so that it need only say what changed.

A session belongs to its connection and goes with it; there are at most SESSIONS_MAX. A client that gets none goes on
with full fetches.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count
from typing import Any

SESSIONS_MAX = 5_000
PARTITIONS_MAX = 100_000  # of one session
FULL_EPOCH, CLOSE_EPOCH = 0, -1
EPOCH_MAX = (1 << 31) - 1


class Watched:
    """One partition of a session: what the client asked for, and what it was last told."""

    __slots__ = ("asked", "error", "high_watermark", "log_start", "stable_end")

    def __init__(self, asked: Any) -> None:
        self.asked = asked
        self.error = -2  # none yet, so that the first answer names it
        self.high_watermark = self.log_start = self.stable_end = -1


class FetchSession:
    def __init__(self, session_id: int) -> None:
        self.id = session_id
        self.epoch = 1
        self.by_id = False  # whether its partitions are named by topic id
        self.partitions: dict[Hashable, Watched] = {}  # in the order they are served

    def advance(self) -> None:
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def served(self, key: Hashable) -> None:
        """It was given data: the others are served first next time, so that a full answer starves nobody."""
        self.partitions[key] = self.partitions.pop(key)


class FetchSessions:
    def __init__(self) -> None:
        self._sessions: dict[int, FetchSession] = {}
        self._ids = count(1)

    def make(self, size: int) -> FetchSession | None:
        if len(self._sessions) >= SESSIONS_MAX or size > PARTITIONS_MAX:
            return None
        session = FetchSession(next(self._ids))
        self._sessions[session.id] = session
        return session

    def find(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

"""Long work that somebody waits for (erasing, a backup): how far it is, so that a command can show it. At most WORKS_MAX."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

WORKS_MAX = 64


@dataclass(slots=True, eq=False)
class Work:
    """`done` of `total` bytes; written by the thread that works, read by the loop."""

    kind: str  # erase | backup
    what: str
    user: str  # who began it
    done: int = 0
    total: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def set(self, done: int, total: int) -> None:
        self.done, self.total = done, total

    def to_document(self) -> dict[str, Any]:
        seconds = time.monotonic() - self.began_s
        left_s = (self.total - self.done) * seconds / self.done if self.done else None
        return {
            "kind": self.kind,
            "what": self.what,
            "user": self.user,
            "done_bytes": self.done,
            "total_bytes": self.total,
            "seconds": round(seconds, 3),
            "left_s": round(left_s, 1) if left_s is not None else None,
        }


class Works:
    def __init__(self) -> None:
        self._running: list[Work] = []

    @contextlib.contextmanager
    def begin(self, kind: str, what: str, user: str) -> Iterator[Work]:
        work = Work(kind, what, user)
        if len(self._running) < WORKS_MAX:  # beyond it nobody sees how far it is
            self._running.append(work)
        try:
            yield work
        finally:
            if work in self._running:
                self._running.remove(work)

    def of(self, user: str | None) -> list[dict[str, Any]]:
        """Of one user, or (None) of all."""
        return [one.to_document() for one in self._running if user is None or one.user == user]

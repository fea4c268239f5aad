"""When an append counts as done: `sync`, `interval:<ms>`, `os` or `none`, chosen per topic.

sync         acks wait for fdatasync (group commit); the default
interval:N   acks do not wait; the log is synced every N ms
os           acks do not wait; the operating system writes when it likes; sealed segments are synced
none         as `os`, and nothing is ever synced on purpose
"""

from __future__ import annotations

from dataclasses import dataclass

from mainstem.model.errors import InvalidArgument

INTERVAL_MS_MAX = 3_600_000


@dataclass(frozen=True, slots=True)
class Durability:
    mode: str  # sync | interval | os | none
    interval_ms: int = 0

    @property
    def acks_wait(self) -> bool:
        return self.mode == "sync"

    def __str__(self) -> str:
        return f"interval:{self.interval_ms}" if self.mode == "interval" else self.mode


SYNC = Durability("sync")


def parse_durability(text: str) -> Durability:
    mode, _, rest = text.partition(":")
    if mode in ("sync", "os", "none") and not rest:
        return Durability(mode)
    if mode == "interval" and rest.isdigit() and 0 < int(rest) <= INTERVAL_MS_MAX:
        return Durability(mode, int(rest))
    raise InvalidArgument(
        f"durability {text!r} is not one of sync, interval:<ms>, os, none",
        fix="mainstem topic alter TOPIC --durability sync",
    )

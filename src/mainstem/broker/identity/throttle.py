"""Guessing passwords is slow, and hurts nobody but the guesser.

- A user at an address may fail `free` times within FORGET_MS. From then on each failure doubles how long that user must
  wait at that address: one second, two, four, at most WAIT_MS_MAX. The same user elsewhere, and others there, do not wait.
- Who tries many names from one address, or one name from many, is answered late once he fails, up to LATE_S_MAX: a right
  password is answered at once, so nobody else is locked out.

Every protocol asks `check` before it looks at a password and tells `failed` or `succeeded` after. ENTRIES_MAX pairs are
remembered; the one that failed longest ago is forgotten first.
"""

from __future__ import annotations

from typing import Any

from mainstem.model.errors import Overloaded

WAIT_MS_FIRST, WAIT_MS_MAX = 1_000, 60_000
FORGET_MS = 600_000
ENTRIES_MAX = 50_000
LATE_FREE = 10  # times `free`: of all names at an address, or of all addresses for a name
LATE_S_FIRST, LATE_S_MAX = 0.05, 2.0


class Throttle:
    """Times are milliseconds of a clock that only goes forward."""

    def __init__(self, free: int) -> None:
        self.free = free
        self._pairs: dict[tuple[str, str], tuple[int, int]] = {}  # (address, user) → failures, the last one
        self._sums: dict[str, tuple[int, int]] = {}

    def check(self, address: str, user: str, now_ms: int) -> None:
        """Overloaded while it must wait."""
        failures, last_ms = self._entry(self._pairs.get((address, user)), now_ms)
        wait_ms = last_ms + self._wait_ms(failures) - now_ms
        if failures >= self.free and wait_ms > 0:
            raise Overloaded(
                f"{failures} failed logins of {user[:128]!r} from {address or 'here'}; wait {-(-wait_ms // 1000)} s"
            )

    def failed(self, address: str, user: str, now_ms: int) -> float:
        """Returns how many seconds late the answer should be."""
        failures, _ = self._entry(self._pairs.pop((address, user), None), now_ms)
        _remember(self._pairs, (address, user), (failures + 1, now_ms))
        late_s = 0.0
        for key in (f"address {address}", f"user {user}"):
            count, _ = self._entry(self._sums.pop(key, None), now_ms)
            _remember(self._sums, key, (count + 1, now_ms))
            beyond = count + 1 - LATE_FREE * self.free
            if beyond > 0:
                late_s = max(late_s, min(LATE_S_FIRST * 2 ** min(beyond, 10), LATE_S_MAX))
        return late_s

    def succeeded(self, address: str, user: str) -> None:
        self._pairs.pop((address, user), None)

    def _wait_ms(self, failures: int) -> int:
        return int(min(WAIT_MS_FIRST << min(max(failures - self.free, 0), 10), WAIT_MS_MAX))

    @staticmethod
    def _entry(found: tuple[int, int] | None, now_ms: int) -> tuple[int, int]:
        return found if found is not None and found[1] + FORGET_MS > now_ms else (0, now_ms)


def _remember(entries: dict[Any, tuple[int, int]], key: Any, entry: tuple[int, int]) -> None:
    if len(entries) >= ENTRIES_MAX:
        del entries[next(iter(entries))]
    entries[key] = entry

"""Files that somebody reads by path: they stay, even when their part is trimmed or replaced, until nobody does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


class Leases:
    """Under the engine's lock. A restart ends all of them."""

    def __init__(self) -> None:
        self._held: Counter[Path] = Counter()
        self.doomed: set[Path] = set()  # removed from the log, kept for those who hold them

    def hold(self, path: Path) -> None:
        self._held[path] += 1

    def release(self, path: Path) -> bool:
        """True: the file is to be removed now."""
        self._held[path] -= 1
        if self._held[path] > 0:
            return False
        del self._held[path]
        doomed = path in self.doomed
        self.doomed.discard(path)
        return doomed

    def keeps(self, path: Path) -> bool:
        """The part is gone: whether its file has to stay for now."""
        if self._held[path] > 0:
            self.doomed.add(path)
            return True
        return False

"""The first leases of a queue in plain Python: the oracle of `cursor/_leases.pyx`."""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Iterator


class Leases:
    def __init__(self) -> None:
        self._held: dict[int, None] = {}  # ascending

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, position: int) -> bool:
        return position in self._held

    def __iter__(self) -> Iterator[int]:
        """In ascending order."""
        return iter(list(self._held))

    @property
    def lowest(self) -> int | None:
        """None if there is none."""
        return next(iter(self._held), None)

    def between(self, first: int, last: int) -> list[int]:
        """Those from `first` to `last`."""
        return [position for position in self._held if first <= position <= last]

    def add(self, positions: array[int]) -> None:
        """They are ascending and, but for repeats of a journal, beyond all others."""
        last = next(reversed(self._held), -1)
        for position in positions:
            if position > last:
                self._held[position] = None
                last = position
            elif position not in self._held:
                ascending = list(self._held)
                insort(ascending, position)
                self._held = dict.fromkeys(ascending)

    def take(self, positions: array[int]) -> array[int]:
        """They are leased no more; those that were."""
        return array("q", [p for p in positions if self.discard(p)])

    def discard(self, position: int) -> bool:
        """Whether it was there."""
        if position not in self._held:
            return False
        del self._held[position]
        return True

    def clear(self) -> None:
        self._held.clear()

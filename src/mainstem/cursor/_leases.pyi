from array import array
from collections.abc import Iterator

class Leases:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, position: int) -> bool: ...
    def __iter__(self) -> Iterator[int]:
        """In ascending order."""
    @property
    def lowest(self) -> int | None:
        """None if there is none."""
    def between(self, first: int, last: int) -> list[int]:
        """Those from `first` to `last`."""
    def add(self, positions: array[int]) -> None:
        """They are ascending and, but for repeats of a journal, beyond all others."""
    def take(self, positions: array[int]) -> array[int]:
        """They are leased no more; those that were."""
    def discard(self, position: int) -> bool:
        """Whether it was there."""
    def clear(self) -> None: ...

from array import array
from collections.abc import Iterable

def ascending(positions: Iterable[int]) -> array[int]:
    """The same positions in ascending order, packed; they are distinct."""

def run_list(positions: array[int], last: int) -> bytes:
    """Ascending positions as arithmetic runs, the first as its distance from `last`."""

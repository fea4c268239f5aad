"""A whole number as a client spells it: ASCII digits, and no more of them than the number may have.

`str.isdigit` is true of `²` and of a megabyte of digits, and `int` raises for both. What a client wrote may be read by
others long after it was stored, so a number that cannot be one must be noticed where it is read, each time.
"""

from __future__ import annotations

DIGITS_MAX = 18  # whatever has no more fits 63 bits
MS_DIGITS_MAX = 15  # of milliseconds: the same in microseconds does


def whole_number(text: str | bytes, digits_max: int = DIGITS_MAX) -> int | None:
    """None where it is none."""
    return int(text) if len(text) <= digits_max and text.isascii() and text.isdigit() else None

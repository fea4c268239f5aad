"""A number and what it counts, in a sentence."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 record`, `12,345 records`, `2 batches`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"

"""A disk without room where a lake lies: told as what it is, and what to do about it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from errno import EDQUOT, ENOSPC

from mainstem.model.errors import DiskFull

FIX = "free space there, then run it again: it goes on where the table ends, and removes what was left unfinished"
WORDS = ("No space left on device", "Disk quota exceeded", "database or disk is full")  # the system's, and SQLite's


@contextlib.contextmanager
def room_in(location: str) -> Iterator[None]:
    """What fails for want of space is a DiskFull that names the place. Spark keeps only its text: so the fix is in it."""
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:
        if getattr(error, "errno", None) in (ENOSPC, EDQUOT) or any(word in str(error) for word in WORDS):
            raise DiskFull(f"no space is left where the lake lies, {location} (fix: {FIX})", fix=FIX) from error
        raise

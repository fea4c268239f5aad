"""Memory that large messages are received into and read into, used again.

    | page of ours | as much as the message announced |   a mapping of its own; a page of it costs when it is first touched

Memory that is new to a process costs as much as what is copied into it, and giving tens of megabytes back takes milliseconds
of whoever does it. So what a whole message leaves is kept for the next one: at most KEPT_BYTES_MAX, until it was not needed
for `release_idle` to be called twice. What an unfinished message leaves is given back at once.

A message that is announced and does not come must cost nothing: of new memory only what was touched counts (`kept_bytes`),
of memory that is used again all of it.
"""

from __future__ import annotations

from mainstem.codec._large_memory import KEPT_BYTES_MAX, PAGED_BYTES_MIN, Block, kept_bytes, release_idle

IDLE_S = 2.0  # between two calls of `release_idle`

__all__ = ["IDLE_S", "KEPT_BYTES_MAX", "PAGED_BYTES_MIN", "Block", "kept_bytes", "release_idle"]

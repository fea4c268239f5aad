"""The door to sending memory without copying it: a third of what sending takes. Its pages are lent to the kernel.

    send_lent(fd, parts) -> bytes taken      the socket is non-blocking; the rest is the caller's to send

A page that was lent must never be written to again, not even when the peer has acknowledged all of it: on the same machine
the peer's receive queue holds this very page until it is read. So whoever uses the memory again gives its pages up first
and gets others (`answer_buffers.Memory`). That costs more than one copy; hence only what is asked for a second time is lent.
"""

from __future__ import annotations

from typing import Any

from mainstem.protocols.kafka._lent_pages import send_lent

LENT_BYTES_MIN = 1 << 16  # below it a copy costs no more

__all__ = ["LENT_BYTES_MIN", "rest_of", "send_lent"]


def rest_of(parts: list[Any], taken: int) -> list[Any]:
    """The parts without their first bytes."""
    for number, part in enumerate(parts):
        if taken < len(part):
            return [memoryview(part)[taken:], *parts[number + 1 :]] if taken else parts[number:]
        taken -= len(part)
    return []

"""Sending memory without copying it needs a compiler: here the transport copies everything, as it does elsewhere."""

from __future__ import annotations

from typing import Any


def send_lent(fd: int, parts: list[Any]) -> int:
    """How many bytes of the parts the socket took at once."""
    return 0

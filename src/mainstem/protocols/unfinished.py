"""What peers have sent of messages that are not whole yet, of all connections together.

A message is kept until its last byte is here, and its sender decides when that is. Memory follows what has arrived, never
what was announced; and beyond `bytes_max` of all connections the one that holds most is cut off, with the reason, until
the sum is within it again. So whoever fills memory loses it, and small messages of others go through.

A connection tells (`note`) when what it keeps has changed; less than NOTED_MIN is not told: 20,000 such are 80 MB.
"""

from __future__ import annotations

from typing import Protocol

BYTES_MAX = 256 << 20
NOTED_MIN = 4 << 10


class Holder(Protocol):
    """A connection, as far as it concerns us."""

    closing: bool
    unfinished: int

    def cut_off(self, reason: str) -> None:
        """It holds most: close it, and free what it keeps."""


class Unfinished:
    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.cut_total = 0
        self._holders: set[Holder] = set()

    def note(self, connection: Holder, size: int) -> None:
        """So much is kept for it. May close it, or another."""
        if size <= NOTED_MIN or connection.closing:
            size = 0
        if size == connection.unfinished:
            return
        self.bytes += size - connection.unfinished
        connection.unfinished = size
        if size:
            self._holders.add(connection)
            while self.bytes > self.bytes_max:
                self._cut(max(self._holders, key=_held))
        else:
            self._holders.discard(connection)

    def forget(self, connection: Holder) -> None:
        if connection.unfinished:
            self.bytes -= connection.unfinished
            connection.unfinished = 0
            self._holders.discard(connection)

    def _cut(self, connection: Holder) -> None:
        held = connection.unfinished
        self.forget(connection)
        self.cut_total += 1
        connection.cut_off(
            f"it sent {held >> 10} KiB of messages that are not whole, the most of all clients, which together may have "
            f"{self.bytes_max >> 20} MiB (limits.input_bytes_total_max)"
        )


def _held(connection: Holder) -> int:
    return connection.unfinished

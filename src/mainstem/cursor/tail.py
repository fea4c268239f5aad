"""The tail cursor: always chases the newest. Pure.

    live ──── miss(position) ───▶ behind ──── caught_up() ───▶ live

A live reader is handed every record as it is written. The first it cannot take is where it is behind from; until it
stands at the head again it reads from the log, and live records are not offered.
"""

from __future__ import annotations


class TailCursor:
    __slots__ = ("live", "position")

    def __init__(self, position: int = 0, *, live: bool = True) -> None:
        self.position = position  # the next to read, when behind
        self.live = live

    def miss(self, position: int) -> None:
        """There was no room for the record at `position`; later ones do not move it."""
        if self.live:
            self.live = False
            self.position = position

    def read(self, position: int) -> None:
        """Everything up to and including `position` was taken from the log."""
        if position >= self.position:
            self.position = position + 1

    def caught_up(self, head: int) -> bool:
        """Live again if nothing below `head` is left to read."""
        if not self.live and self.position >= head:
            self.live = True
        return self.live

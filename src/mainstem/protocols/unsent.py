"""What peers have not read yet, of all connections together.

One connection may leave a megabyte unread before nothing more is written to it. Ten thousand that do so at once would be ten
gigabytes, so there is a limit for all of them, too: beyond it each may leave only SHARE_BYTES unread, until half of what
all of them left is gone. Who is held back loses nothing that was promised to it: it goes on from the log when it has room.

A connection tells (`note`) after each write that its peer did not take at once; what a transport sent since then is asked
for once a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainstem.protocols.connection import Connection

BYTES_MAX = 256 << 20
SHARE_BYTES = 64 << 10

logger = logging.getLogger("mainstem.connection")


class Unsent:
    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.tight = False
        self.listeners: list[Callable[[bool], None]] = []  # told when it gets tight, and when it no longer is
        self._holders: set[Connection] = set()
        self._limited: set[Connection] = set()

    def note(self, connection: Connection, size: int) -> None:
        """So much of what was written to it is not sent."""
        self.bytes += size - connection.unsent
        connection.unsent = size
        if size:
            self._holders.add(connection)
        else:
            self._holders.discard(connection)
        if not self.tight:
            if self.bytes > self.bytes_max:
                self._tighten()
        elif self.bytes <= self.bytes_max // 2:
            self._loosen()
        elif size > SHARE_BYTES:
            self._limit(connection)

    def forget(self, connection: Connection) -> None:
        self._limited.discard(connection)
        if connection.unsent:
            self.note(connection, 0)

    def review(self) -> None:
        """Once a second."""
        for connection in tuple(self._holders):
            connection.note_unsent()

    def _tighten(self) -> None:
        logger.warning(
            "clients left %d MiB unread: until half of it is gone each may leave %d KiB, then it is served from the log",
            self.bytes >> 20,
            SHARE_BYTES >> 10,
        )
        self._tell(True)
        for connection in tuple(self._holders):
            if connection.unsent > SHARE_BYTES:
                self._limit(connection)

    def _limit(self, connection: Connection) -> None:
        if connection not in self._limited:
            self._limited.add(connection)
            connection.limit_output(SHARE_BYTES)

    def _loosen(self) -> None:
        self._tell(False)
        limited, self._limited = self._limited, set()
        for connection in limited:
            connection.limit_output(connection.server.out_bytes_max)

    def _tell(self, tight: bool) -> None:
        self.tight = tight
        for listener in self.listeners:
            listener(tight)

"""The wire between a simulated client and the broker: bytes that arrive, or are lost with the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Wire:
    """The broker's transport of one connection. What it writes lies in `inbox` until the client looks."""

    def __init__(self, connection: Any, is_cut: Callable[[], bool]) -> None:
        self._connection, self._is_cut = connection, is_cut
        self.inbox = bytearray()
        self.closed = False
        connection.connection_made(self)

    # -- the client's end

    def send(self, data: bytes) -> None:
        if not self.closed:
            self._connection.data_received(data)

    def drop(self) -> None:
        """The network fails, or the client goes without a word."""
        if not self.closed:
            self.closed = True
            self._connection.connection_lost(None)

    # -- the broker's end

    def write(self, data: Any) -> None:
        if not self.closed and not self._is_cut():
            self.inbox += data

    def writelines(self, parts: Any) -> None:
        for part in parts:
            self.write(part)

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            self._connection.connection_lost(None)

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

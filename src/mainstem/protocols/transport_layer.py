"""What may stand between a transport and a connection: the one's protocol, the other's transport.

A `TransportLayer` passes everything on, in both directions. What it is there for (TLS, a porter) its subclass changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


class TransportLayer(asyncio.Protocol):
    __slots__ = ("_above", "_below")

    def __init__(self, above: Any, below: Any) -> None:
        self._above = above  # a connection, or another layer
        self._below = below  # None once it is gone, or before it is there

    # -- what the transport below calls

    def eof_received(self) -> bool | None:
        eof: bool | None = self._above.eof_received()
        return eof

    def connection_lost(self, error: Exception | None) -> None:
        self._below = None
        self._above.connection_lost(error)

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    # -- the transport that the connection sees

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default) if self._below is not None else default

    def close(self) -> None:
        if self._below is not None:
            self._below.close()

    def abort(self) -> None:
        if self._below is not None:
            self._below.abort()

    def is_closing(self) -> bool:
        return self._below is None or bool(self._below.is_closing())

    def write_eof(self) -> None:
        if self._below is not None:
            self._below.write_eof()

    def pause_reading(self) -> None:
        if self._below is not None:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        if self._below is not None:
            self._below.resume_reading()

    def get_write_buffer_size(self) -> int:
        return int(self._below.get_write_buffer_size()) if self._below is not None else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._below is not None:
            self._below.set_write_buffer_limits(high=high, low=low)

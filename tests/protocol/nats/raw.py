"""A NATS connection by hand, for what no client library would send."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any, Self

WAIT_S = 10.0


class Raw:
    def __init__(self, port: int, **options: Any) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.info = json.loads(self.line()[5:])
        if options.pop("connect", True):
            given = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, **options}
            self.send(b"CONNECT " + json.dumps(given).encode() + b"\r\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            data = self.socket.recv(65_536)
            if not data:
                raise EOFError(self._buffer)
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def synced(self) -> list[bytes]:
        """What came before the answer to a PING: everything sent so far was handled."""
        self.send(b"PING\r\n")
        return self.until(b"PONG")

    def until(self, last: bytes) -> list[bytes]:
        found = []
        while (line := self.line()) != last:
            if not line.startswith(b"INFO"):
                found.append(line)
        return found

    def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self.socket.recv(65_536)
            if not data:
                raise EOFError(self._buffer)
            self._buffer += data
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def rest(self) -> bytes:
        """Everything until the peer closes."""
        data = self._buffer
        with contextlib.suppress(ConnectionResetError):
            while more := self.socket.recv(65_536):
                data += more
        return data

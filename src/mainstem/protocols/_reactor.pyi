import asyncio
import socket
from collections.abc import Callable
from typing import Any

class Intake:
    """Takes a socket's bytes where they lie: the base of a protocol's incoming half."""

class SocketTransport:
    """One socket: what asyncio calls a transport."""

class Reactor:
    """One listener and its sockets, in a poll set for each namespace."""
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        server: Any,
        now_ns: Callable[[], int],
        listener: socket.socket,
        backlog: int,
    ) -> None: ...
    def close(self) -> None:
        """Take no one new."""
    def finish(self) -> None:
        """The loop ends: let go of everything, whoever still waits."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

class Accepting:
    """Who comes to a listener: some in each turn of the loop."""
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        server: Any,
        listener: socket.socket,
        take: Callable[[socket.socket, Any], None],
    ) -> None: ...
    def close(self) -> None:
        """Take no one new."""

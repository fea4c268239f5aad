from typing import Any

class Parser:
    """Feed it what the socket brings; it answers the commands that are whole. The rest waits, within limits."""

    payload_max: int
    line_max: int
    def __init__(self, payload_max: int, line_max: int = ...) -> None: ...
    def kept_bytes(self) -> int: ...
    def feed(self, data: bytes) -> list[tuple[Any, ...]]:
        """Commands as tuples: (kind, arguments...). Raises WireError where the peer must be closed; what came before
        it in `data` is in the error's `commands`."""

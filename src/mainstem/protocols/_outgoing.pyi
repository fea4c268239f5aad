from typing import Any

class Outgoing:
    """A connection's bytes on their way out, one write per tick."""

    connection: Any
    ticker: Any
    blocked: bool
    dirty: bool
    bytes_max: int
    messages: int
    def __init__(self, ticker: Any) -> None: ...
    @property
    def out_bytes(self) -> int: ...
    def touch(self) -> None:
        """Be flushed by this turn's tick."""
    def flush(self) -> None:
        """One write of all that was written since the last; the ticker calls it."""
    def take(self) -> bytes:
        """All that was written since the last call."""
    def write(self, data: bytes) -> None: ...

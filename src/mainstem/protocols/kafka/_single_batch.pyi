from typing import Any

from mainstem.log.gather import Ticket

class SingleBatch:
    """One request: what it says, the place of its answer, and who waits for its batch."""

    version: int
    correlation: int
    index: int
    start: int
    end: int
    name: bytes
    done: bool
    parts: list[Any] | None
    base_offset: int
    start_offset: int
    def __init__(self) -> None: ...
    def key(self) -> tuple[bytes, int]:
        """The partition; ids are told from names by the sign."""
    def wait(self, ticket: Ticket, connection: Any, state: Any, head: Any) -> None:
        """Answer once the ticket is released; `state` forgets `head` if it fails."""
    def released(self, ticket: Ticket) -> None: ...
    def answer(self, error: int) -> bytes:
        """The whole response with its size."""

def read_single(data: memoryview) -> SingleBatch | None:
    """The request, if it is Produce with acks, of one batch to one partition, outside of transactions."""

class SingleBatches:
    """The requests of one connection that has logged in."""
    def __init__(self, connection: Any) -> None: ...
    def take(self, data: memoryview) -> bool: ...

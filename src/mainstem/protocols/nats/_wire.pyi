from typing import Any

from mainstem.broker.delivery._live import Dispatcher
from mainstem.protocols._reactor import Intake
from mainstem.protocols.nats._outbound import Outbound

class Inbound(Intake):
    """Bytes in; records into the log, and a tuple of `commands` for each command that needs a decision."""

    payload_max: int
    line_max: int
    connection: Any
    publisher: Any
    outbound: Outbound
    dispatcher: Dispatcher
    fresh: bool
    verbose: bool
    takes_headers: bool
    no_responders: bool
    published: bool
    identity: bytes
    messages: int
    messages_in: int
    bytes_in: int
    def __init__(self, payload_max: int, line_max: int = ...) -> None: ...
    @property
    def has_more(self) -> bool:
        """Whether `next` may find something before more is received."""
    def kept_bytes(self) -> int:
        """Of a command that is not whole."""
    def receive(self, data: bytes) -> None:
        """Bytes from the peer; then call `next` until it returns None."""
    def next(self, time_ms: int) -> tuple[Any, ...] | None:
        """The next command that needs a decision; publishes on the way there are done. None: more must be received.

        WireError where the peer must be closed.
        """
    def forget(self) -> None:
        """The peer is gone: what it left unfinished is not waited for."""

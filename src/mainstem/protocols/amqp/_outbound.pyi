from collections.abc import Callable
from typing import Any

from mainstem.broker._live import RecordRef
from mainstem.protocols.amqp._channel_wire import Consumer

class Outbound:
    """A connection's bytes on their way out, one write per tick."""

    connection: Any
    ticker: Any
    describe: Callable[[RecordRef], bytes]
    translate: Callable[[RecordRef], bytes]
    blocked: bool
    dirty: bool
    frame_max: int
    bytes_max: int
    messages: int
    stalled: list[Consumer]
    def __init__(
        self, ticker: Any, describe: Callable[[RecordRef], bytes], translate: Callable[[RecordRef], bytes]
    ) -> None: ...
    @property
    def out_bytes(self) -> int: ...
    def touch(self) -> None:
        """Be flushed by this turn's tick."""
    def flush(self) -> None:
        """One write of all that was written since the last; the ticker calls it."""
    def take(self) -> bytes:
        """All that was written since the last call."""
    def write(self, data: bytes) -> None: ...
    def write_frame(self, kind: int, channel: int, payload: bytes) -> None: ...
    def write_ack(self, channel: int, tag: int, multiple: bool, positive: bool = True) -> None: ...
    def write_content(self, channel: int, method: bytes, properties: bytes, body: bytes) -> None:
        """A method with its content: basic.return, get-ok, replies."""

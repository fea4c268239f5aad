from collections.abc import Callable
from typing import Any

from mainstem.broker.delivery._live import RecordRef
from mainstem.protocols._outgoing import Outgoing
from mainstem.protocols.amqp._channel_wire import Consumer

class Outbound(Outgoing):
    """A connection's bytes on their way out, one write per tick."""

    describe: Callable[[RecordRef], bytes]
    translate: Callable[[RecordRef], bytes]
    frame_max: int
    stalled: list[Consumer]
    def __init__(
        self, ticker: Any, describe: Callable[[RecordRef], bytes], translate: Callable[[RecordRef], bytes]
    ) -> None: ...
    def write_frame(self, kind: int, channel: int, payload: bytes) -> None: ...
    def write_ack(self, channel: int, tag: int, multiple: bool, positive: bool = True) -> None: ...
    def write_content(self, channel: int, method: bytes, properties: bytes, body: bytes) -> None:
        """A method with its content: basic.return, get-ok, replies."""

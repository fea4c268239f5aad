from typing import Any

from mainstem.broker.streams.stream import Stream
from mainstem.log.gather import Ticket
from mainstem.protocols.nats.jetstream.api import JetStream

class Gate:
    """What a publisher's connection must know of a stream to put a message into it, and to have it acked."""

    stream: Stream
    config: dict[str, Any]
    def __init__(self, jetstream: JetStream, stream: Stream) -> None: ...
    def await_durable(self, ticket: Ticket, index: int, reply: bytes, more: bytes = b"") -> None:
        """An ack leaves when the ticket is released."""

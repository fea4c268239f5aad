from collections.abc import Callable
from typing import Any

from mainstem.broker.delivery._live import Route
from mainstem.protocols.amqp._channel_wire import ChannelWire
from mainstem.protocols.amqp._outbound import Outbound
from mainstem.protocols.amqp.events import Event

class Target:
    """Where publishes to one exchange and routing key go. `plain`: nobody need look at them."""

    route: Route
    exchange: str
    key: str
    flags: int
    head: bytes
    head_count: int
    plain: bool
    live: bool  # nothing is stored: a persistent publish must be refused
    def __init__(
        self,
        route: Route,
        exchange: str,
        key: str,
        *,
        flags: int,
        head: bytes,
        head_count: int,
        plain: bool,
        live: bool = False,
    ) -> None: ...

class TargetTable:
    """(exchange, routing key) → Target, asked of `resolve` once."""

    resolve: Callable[[bytes, bytes], Target]
    epoch: int
    def __init__(self, resolve: Callable[[bytes, bytes], Target]) -> None: ...
    def clear(self) -> None: ...

class Inbound:
    """Bytes in: plain publishes to the log, acks to their sinks, the rest as events."""

    targets: TargetTable
    frame_max: int
    body_bytes_max: int
    messages: int
    channel_number: int
    method_number: int
    def __init__(self, connection: Any = None, out: Outbound | None = None) -> None: ...
    def receive(self, data: bytes) -> None: ...
    def kept_bytes(self) -> int:
        """Of frames and contents that are not whole yet."""
    def forget(self) -> None:
        """The peer is gone: what it left unfinished is not waited for."""
    def open(self, channel: ChannelWire) -> None: ...
    def close(self, number: int) -> None: ...
    def touch(self, channel: ChannelWire) -> None:
        """A publish of the slow path is to be confirmed with this read's."""
    def take_touched(self) -> list[ChannelWire]:
        """Confirming channels that published since the last call."""
    def next(self, time_ms: int) -> Event | None:
        """Handle what can be handled here; the next event, or None when no whole frame is left."""

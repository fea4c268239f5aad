from collections.abc import Callable, Iterable
from typing import Any, Protocol

from mainstem.broker.delivery._live import RecordRef, Sink
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.protocols.connection import Ticker
from mainstem.protocols.mqtt.outgoing._encoder import Encoder, Grant

class Source(Protocol):
    """Where a delivery came from that no route brought."""
    def settle(self, reason: int) -> None: ...
    def give_back(self) -> None: ...

def set_tight(tight: bool) -> None:
    """Clients left so much unread that no connection may gather a whole tick's packets before it finds out whether its
    peer takes them."""

def is_crowded() -> bool:
    """So much waits to be flushed that nothing more should be delivered before."""

class Outbound(Sink):
    """Records out as PUBLISH packets, with the state of those that are not acknowledged yet."""

    encoder: Encoder
    ticker: Ticker
    version: int
    packet_bytes_max: int
    window: int
    alias_max: int
    durable: bool
    explains: bool
    client_id: bytes
    allows: Callable[[bytes], bool] | None
    session: Any
    connection: Any
    transport: Any
    bytes_sent: int
    messages: int
    progress: bool
    def __init__(self, namespace: Namespace | None, encoder: Encoder, ticker: Ticker) -> None: ...
    @property
    def inflight(self) -> int: ...
    @property
    def out_size(self) -> int: ...
    def take(self) -> bytes:
        """All that was collected, as bytes; the buffer is empty again."""
    def write(self, data: bytes) -> None:
        """A packet made elsewhere."""
    def flush(self) -> None:
        """One write of all that was collected; the ticker calls it."""
    def fail(self, error: Exception) -> None: ...
    def push(self, record: RecordRef, options: Grant) -> bool: ...
    def offer(self, record: RecordRef, grant: Grant, retain: bool = False, source: Source | None = None) -> bool:
        """A record that no route brings: a retained one, or one of a queue (`source.settle` is told its end)."""
    def choose(self, record: RecordRef) -> Any: ...
    def merge(self, options: list[Grant]) -> Grant: ...
    @property
    def room(self) -> bool:
        """Whether a delivery that must not be lost can be taken now."""
    def take_assigned(self) -> list[tuple[int, int]]:
        """New packet identifiers with their stamps, ahead of their packets, which `take_held` still gives."""
    def take_held(self) -> tuple[list[tuple[int, int]], bytes]:
        """(new packet identifiers with their stamps, packets) since the last call; `write_held` once that is durable."""
    def write_held(self, packets: bytes) -> None: ...
    def take_recorded(self) -> list[int]:
        """Packet identifiers whose PUBREC came since the last call: `release` them once that is durable."""
    def release(self, packet_ids: Iterable[int]) -> None: ...
    def take_moves(self) -> tuple[list[int], list[tuple[int, int]]]:
        """Since the last call: identifiers that became free, and those of QoS 1 that were given out, with their stamps."""
    def forget(self, packet_id: int) -> None:
        """What was in flight under this identifier cannot be sent again: it is gone from the log."""
    def flight(self) -> list[tuple[int, int, int]]:
        """(packet identifier, state, stamp) of what is in flight and came through no source, oldest first."""
    def restore(self, flight: Iterable[tuple[int, int, int]]) -> None: ...
    def unsettled_sources(self) -> list[Source]:
        """What was delivered from queues and is not settled."""
    def take_sources(self) -> list[Source]:
        """What was delivered from queues and is not settled; the caller gives it back."""

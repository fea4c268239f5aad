from collections.abc import Callable, Iterable
from typing import Any

from mainstem.broker.sessions.retained import Retained
from mainstem.log._gather import Ticket
from mainstem.protocols._routes import RouteTable
from mainstem.protocols.mqtt.limits import Limits
from mainstem.protocols.mqtt.outgoing._outbound import Outbound
from mainstem.protocols.mqtt.wire.packets import Event

class Inbound:
    """Bytes in; records into the log, acks into the outbound half, and an event for each packet of the other kinds."""

    outbound: Outbound
    limits: Limits
    version: int
    packet_bytes_max: int
    receive_max: int
    alias_max: int
    authenticating: bool
    client_id: bytes
    durable: bool
    retained: Retained | None
    routes: RouteTable | None
    connection: Any
    server: Any
    publisher: Any
    now_ns: Callable[[], int]
    messages: int
    unacked: int
    waiting: bool
    def __init__(self, outbound: Outbound, limits: Limits) -> None: ...
    @property
    def received_count(self) -> int: ...
    def receive(self, data: bytes) -> None:
        """Bytes from the peer; then call `next` until it returns None."""
    def forget(self) -> None:
        """The peer is gone: what it left unfinished is not waited for."""
    def feed(self, data: bytes, time_ms: int) -> Event | None:
        """`receive` and the first `next` in one."""
    def data_received(self, data: bytes) -> None:
        """The connection's: what needs no decision is done here, the rest is handed to it."""
    def next(self, time_ms: int) -> Event | None:
        """The next packet that needs a decision; publishes and acks on the way there are done when this returns."""
    def complete(self, ticket: Ticket) -> None:
        """The PUBCOMPs of the releases since the last call leave when `ticket` is stable."""
    def answer(self, ticket: Ticket | None, qos: int, packet_id: int, reason: int = 0) -> None:
        """Acknowledge a publish that came as an event, after `ticket` if there is one, in its turn."""
    def released(self, ticket: Ticket, /) -> None:
        """A ticket was released: send the acks at the front whose tickets are, in publish order."""
    def received_ids(self, stable: bool = False) -> list[int]:
        """Packet identifiers between PUBLISH and PUBREL, ascending; `stable`: only those whose records are."""
    def unstable(self) -> list[tuple[Ticket, list[int]]]:
        """(ticket, packet identifiers) of QoS 2 publishes whose records are not durable yet."""
    def released_ids(self) -> list[int]:
        """Packet identifiers whose PUBREL came since the last `complete`."""
    def restore_received(self, ids: Iterable[int]) -> None:
        """A session goes on: these were received and not yet released."""

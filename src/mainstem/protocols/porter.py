"""A connection whose namespace another cell of the cluster holds is handed to that cell's owner, once its login tells.

Who a client is, and which namespace it means, is decided in one place, the login of its protocol: by name, token,
certificate or nkey. So a client may arrive at any cell. Until its login is decided a `Porter` stands between the transport
and the connection, and keeps what the client said. Then it is

    settled    the namespace is ours: the porter steps aside, and is gone
    moved      the connection ends here unheard, and the other owner hears from the start what the client said, with the
               principal it was let in as. What it answers before its own login is settled the client has got already
               (a greeting, a challenge): it is muted.

A protocol whose login is over before the next request (Kafka) has no porter: it is moved between two requests.
Without a cluster of several cells nothing of this is made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from mainstem.broker.namespaces.placement import AGAIN, Placement
from mainstem.broker.rights.access import Principal
from mainstem.protocols.transport_layer import TransportLayer

if TYPE_CHECKING:
    from mainstem.protocols.connection import Connection

logger = logging.getLogger("mainstem.connection")

SAID_BYTES_MAX = 1 << 20  # kept of a client before its login; who says more can be served here only


class Forward(Protocol):
    """How a server hands a client on."""

    placement: Placement

    def __call__(self, transport: Any, listener: str, cell: int, principal: Principal, said: bytes) -> None:
        """The transport is the caller's no more."""


def let_in_elsewhere(connection: Connection) -> Principal | None:
    """As whom another cell has let this client in; told once."""
    again = connection.transport.get_extra_info(AGAIN) if connection.transport is not None else None
    principal: Principal | None = again.take() if again is not None else None
    return principal


def stays(connection: Connection, principal: Principal, namespace: str = "") -> bool:
    """Whether the namespace is ours to serve. Else the client has been handed on, and the connection is over."""
    forward: Forward | None = connection.server.forward
    if forward is None:
        return True
    transport = connection.transport
    porter = transport.get_extra_info("porter") if transport is not None else None
    cell = forward.placement.elsewhere(namespace or principal.namespace)
    if cell is None:
        if porter is not None:
            connection.flush()  # a greeting that waits for the tick is muted as well
            porter.settle()
        return True
    if namespace:
        principal = replace(principal, namespace=namespace)
    if porter is None:
        connection.close(f"namespace {principal.namespace} is another cell's: connect again")
    else:
        porter.move(cell, principal)
    return False


def move_between_requests(connection: Connection, principal: Principal) -> bool:
    """The same for a protocol without a porter: everything it said has been answered."""
    forward: Forward | None = connection.server.forward
    cell = forward.placement.elsewhere(principal.namespace) if forward is not None else None
    if forward is None or cell is None or connection.transport is None:
        return False
    transport = connection.transport
    connection.flush()
    transport.pause_reading()
    connection.connection_lost(None)
    forward(transport, connection.server.listener, cell, principal, b"")
    return True


class Porter(TransportLayer):
    """The transport's protocol and the connection's transport, until the login is decided."""

    # As a transport of the reactor knows a connection.
    meter = None
    closing = False
    heard_second = 0

    def __init__(self, inner: Any, listener: str, forward: Forward) -> None:
        super().__init__(inner, None)
        self._listener, self._forward = listener, forward
        self._said: bytearray | None = bytearray()
        self._muted = False

    # -- what the transport calls

    def connection_made(self, transport: Any) -> None:
        self._below = transport
        self._muted = transport.get_extra_info(AGAIN) is not None
        self._above.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._said is not None:
            self._said += data
            if len(self._said) > SAID_BYTES_MAX:
                self._said = None
        self._above.data_received(data)

    on_data = data_received

    def note_unsent(self) -> None:
        """A transport's word that bytes wait: before a login they are few."""

    # -- the login's outcome

    def settle(self) -> None:
        """It stays: transport and connection face each other from here on."""
        if self._below is None:
            return
        self._muted, self._said = False, None
        self._above.use_transport(self._below)
        self._below.set_protocol(self._above)

    def move(self, cell: int, principal: Principal) -> None:
        below, said = self._below, self._said
        if below is None:
            return
        if said is None:
            logger.warning("a client of namespace %s cannot be handed on: connect to the TLS port", principal.namespace)
            below.abort()
            return
        self._below = None
        below.pause_reading()
        self._above.connection_lost(None)
        self._forward(below, self._listener, cell, principal, bytes(said))

    # -- the transport that the connection sees

    def write(self, data: Any) -> None:
        if not self._muted and self._below is not None:
            self._below.write(bytes(data))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "porter":
            return self
        return super().get_extra_info(name, default)

    def set_protocol(self, protocol: Any) -> None:
        """TLS begins inside the connection (`upgrade.py`): what was said cannot be said again to another."""
        self._above, self._said = protocol, None

    def can_write_eof(self) -> bool:
        return self._below is not None and bool(self._below.can_write_eof())


def with_porters(server: Any, listener: str, forward: Forward) -> None:
    """From here on the server's clients may be handed on. Before it listens."""
    server.forward, server.listener = forward, listener
    if not getattr(server, "moves_between_requests", False):
        server.make_connection = _porters(server.make_connection, listener, forward)


def _porters(make: Callable[[], Any], listener: str, forward: Forward) -> Callable[[], Any]:
    def connection() -> Any:
        return Porter(make(), listener, forward) if forward.placement.places else make()

    return connection

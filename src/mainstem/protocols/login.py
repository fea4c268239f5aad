"""Logging in, as every protocol does it: at once where that costs nothing, else beside the loop while nothing more of the
connection is read. And logins that end by themselves: a token's connection goes when the token does."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mainstem.broker.identity.login import Identity, Shown
from mainstem.broker.rights.access import Principal
from mainstem.broker.rights.refusals import Client
from mainstem.model.errors import MainstemError, NotAuthorized, Overloaded
from mainstem.protocols.porter import let_in_elsewhere

if TYPE_CHECKING:
    from mainstem.broker.rights.audit import Audit
    from mainstem.protocols.connection import Connection

logger = logging.getLogger("mainstem.login")

HOLD_QUEUE = 4  # a request of its own must finish first


def address_of(connection: Connection) -> str:
    peer = connection.transport.get_extra_info("peername") if connection.transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) else ""


def shown_by(
    connection: Connection, name: str = "", password: bytes = b"", *, namespace: str = "", token_only: bool = False
) -> Shown:
    """What it shows, with where it is and the certificate that it showed to TLS."""
    certificate = connection.transport.get_extra_info("peercert") if connection.transport is not None else None
    address, protocol = address_of(connection), connection.server.protocol
    return Shown(name, password, namespace, address, protocol, certificate, token_only)


def log_in(
    connection: Connection,
    identity: Identity,
    shown: Shown,
    admitted: Callable[[Principal], None],
    refused: Callable[[MainstemError], None],
    after: Callable[[], None] = lambda: None,
) -> None:
    """`admitted` or `refused`; if it took its time, reading goes on and `after` is called."""
    principal = let_in_elsewhere(connection) or identity.login_now(shown)
    if principal is not None:
        admitted(principal)
        return
    connection.hold(HOLD_QUEUE)
    asyncio.get_running_loop().create_task(_log_in(connection, identity, shown, admitted, refused, after))


async def _log_in(
    connection: Connection,
    identity: Identity,
    shown: Shown,
    admitted: Callable[[Principal], None],
    refused: Callable[[MainstemError], None],
    after: Callable[[], None],
) -> None:
    try:
        principal = await identity.login(shown)
    except (NotAuthorized, Overloaded) as error:
        logger.info("%s: login of %r refused: %s", connection.label(), shown.name[:128], error)
        refused(error)
    else:
        if connection.closing:
            return
        admitted(principal)
    connection.release(HOLD_QUEUE)
    if not connection.closing:
        after()


def keep_login(connection: Connection, principal: Principal) -> None:
    """It was let in as this, for as long as this holds."""
    connection.server.expiries.set(connection, principal.expires_s)


def tell_refused(
    connection: Connection, audit: Audit, action: str, name: str | bytes, why: str = "", times: int = 1
) -> None:
    """Rules refused it a publish or a subscription: the audit reports it, together with its like."""
    audit.refused(connection, partial(_refused_client, connection), action, name, why, times)


def _refused_client(connection: Connection) -> Client:
    return Client(connection.logged_in(), address_of(connection), connection.server.protocol)


def bearer_token(response: bytes) -> tuple[bytes, bytes]:
    """Name and token of SASL OAUTHBEARER (RFC 7628); both empty where it is something else.

    n,[a=<user>],^Aauth=Bearer <token>^A[<name>=<value>^A]^A
    """
    head, *pairs = response.split(b"\1")
    parts = head.split(b",")
    for pair in pairs:
        key, _, value = pair.partition(b"=")
        scheme, _, token = value.partition(b" ")
        if key == b"auth" and scheme.lower() == b"bearer" and parts[0] in (b"n", b"y"):
            name = parts[1].removeprefix(b"a=") if len(parts) > 1 else b""
            return name.replace(b"=2C", b",").replace(b"=3D", b"="), token.strip()
    return b"", b""


class Expiries:
    """Connections by the second in which their logins end."""

    def __init__(self) -> None:
        self._seconds: list[int] = []  # a heap of the keys below
        self._due: dict[int, set[Connection]] = {}
        self._of: dict[Connection, int] = {}

    def set(self, connection: Connection, second: int) -> None:
        """0: not by itself."""
        self.forget(connection)
        if not second:
            return
        self._of[connection] = second
        if second not in self._due:
            self._due[second] = set()
            heapq.heappush(self._seconds, second)
        self._due[second].add(connection)

    def forget(self, connection: Connection) -> None:
        second = self._of.pop(connection, None)
        if second is not None:
            self._due[second].discard(connection)

    def end_due(self, now_s: float) -> None:
        while self._seconds and self._seconds[0] <= now_s:
            for connection in self._due.pop(heapq.heappop(self._seconds)):
                del self._of[connection]
                connection.end_login()

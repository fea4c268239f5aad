"""Who is connected, by any protocol. A connection is known by its listener and a number that is its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mainstem.admin.answers.consumers import ConnectionRow
from mainstem.admin.long_lists import in_order, in_slices
from mainstem.admin.running import Running
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.model.errors import NotFound
from mainstem.model.whole_numbers import whole_number

if TYPE_CHECKING:
    from mainstem.admin.calls import Call


def seen_by(call: Call) -> Namespace | None:
    """Of which namespace the caller may know the connections; None: of all, and of those that have not logged in."""
    return None if call.principal.admin and "namespace" not in call.query else call.namespace


async def page_of_connections(
    running: Running, namespace: Namespace | None, *, protocol: str = "", after: str = "", limit: int
) -> tuple[list[ConnectionRow], str | None]:
    """So many rows, and where the next page goes on."""
    turns, tenant, rows = running.broker.turns, namespace.name if namespace is not None else "", list[ConnectionRow]()
    for listener, shown in running.protocols.items():
        server = running.servers.get(listener)
        if server is None or listener == "http" or (protocol and shown != protocol):  # HTTP's come and go
            continue
        async for connection in in_slices(turns, tenant, await in_order(turns, tenant, server.connections, key=id)):
            if connection not in server.connections:  # gone since
                continue
            if namespace is not None and namespace_of(connection) is not namespace:
                continue
            row = connection_row(listener, shown, connection)
            if not after or _order(running, row["id"]) > _order(running, after):
                rows.append(row)
            if len(rows) > limit:
                return rows[:limit], rows[limit - 1]["id"]
    return rows, None


def connections_in(running: Running, namespace: Namespace) -> Iterator[Any]:
    """Open connections of a namespace's clients, by any protocol but HTTP."""
    for listener in running.protocols:
        for connection in list(getattr(running.servers.get(listener), "connections", ())):
            if namespace_of(connection) is namespace:
                yield connection


def namespace_of(connection: Any) -> Namespace | None:
    """None before its login; AMQP's is that of its virtual host."""
    vhost = getattr(connection, "vhost", None)
    found = vhost.namespace if vhost is not None else getattr(connection, "namespace", None)
    return found if isinstance(found, Namespace) else None


def _order(running: Running, connection_id: str) -> tuple[int, int]:
    listener, _, number = connection_id.partition("-")
    listeners = list(running.protocols)
    return (listeners.index(listener) if listener in listeners else -1, whole_number(number) or 0)


def connection_row(listener: str, protocol: str, connection: Any) -> ConnectionRow:
    transport = connection.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    principal = getattr(connection, "principal", None)
    return {
        "id": f"{listener}-{id(connection)}",
        "protocol": protocol,
        "client": client_name(connection),
        "user": getattr(principal, "name", "") if not getattr(principal, "anonymous", False) else "",
        "namespace": getattr(namespace_of(connection), "name", ""),
        "address": f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else str(peer or ""),
        "connected_s": connection.server.deadlines.second - connection.opened_second,
        "unsent_bytes": connection.unsent_bytes(),
        "state": "closing" if connection.closing else "held" if connection.held else "open",
    }


def connection_id(running: Running, connection: Any) -> str | None:
    """As its row has it; None where it has ended."""
    for listener in running.protocols if connection is not None else ():
        if connection in getattr(running.servers.get(listener), "connections", ()):
            return f"{listener}-{id(connection)}"
    return None


def client_name(connection: Any) -> str:
    """What the client calls itself, in whatever way its protocol has."""
    for name in ("client_id", "client_name"):
        value = getattr(connection, name, None)
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(value, str) and value:
            return value
    key = getattr(connection, "key", None)
    return key.partition(b"\0")[2].decode(errors="replace") if isinstance(key, bytes) else ""


def find_connection(running: Running, connection_id: str, namespace: Namespace | None) -> tuple[str, Any]:
    listener, _, number = connection_id.partition("-")
    server = running.servers.get(listener)
    for connection in getattr(server, "connections", ()):
        if str(id(connection)) == number and namespace in (None, namespace_of(connection)):
            return running.protocols[listener], connection
    raise NotFound(f"there is no connection {connection_id} (any more)", fix="mainstem conn ls")

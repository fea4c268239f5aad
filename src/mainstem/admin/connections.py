"""Who is connected, by any protocol. A connection is known by its listener and a number that is its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mainstem.admin.rates import PROTOCOLS
from mainstem.admin.running import Running
from mainstem.model.errors import NotFound


def connection_rows(running: Running, *, protocol: str = "", after: str = "") -> Iterator[dict[str, Any]]:
    for listener, shown in PROTOCOLS.items():
        server = running.servers.get(listener)
        if server is None or listener == "http" or (protocol and shown != protocol):  # HTTP's come and go
            continue
        for connection in sorted(server.connections, key=id):
            row = connection_row(listener, shown, connection)
            if not after or _order(row["id"]) > _order(after):
                yield row


def _order(connection_id: str) -> tuple[int, int]:
    listener, _, number = connection_id.partition("-")
    return (list(PROTOCOLS).index(listener) if listener in PROTOCOLS else -1, int(number) if number.isdigit() else 0)


def connection_row(listener: str, protocol: str, connection: Any) -> dict[str, Any]:
    transport = connection.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    principal = getattr(connection, "principal", None)
    return {
        "id": f"{listener}-{id(connection)}",
        "protocol": protocol,
        "client": client_name(connection),
        "user": getattr(principal, "name", "") if not getattr(principal, "anonymous", False) else "",
        "address": f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else str(peer or ""),
        "connected_s": connection.server.deadlines.second - connection.opened_second,
        "unsent_bytes": connection.unsent_bytes(),
        "state": "closing" if connection.closing else "held" if connection.held else "open",
    }


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


def find_connection(running: Running, connection_id: str) -> tuple[str, Any]:
    listener, _, number = connection_id.partition("-")
    server = running.servers.get(listener)
    for connection in getattr(server, "connections", ()):
        if str(id(connection)) == number:
            return PROTOCOLS[listener], connection
    raise NotFound(f"there is no connection {connection_id} (any more)", fix="mainstem conn ls")

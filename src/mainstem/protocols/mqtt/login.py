"""Who a CONNECT is: at once where that costs nothing, else beside the loop while the connection is read no more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainstem.model.errors import MainstemError, NotAuthorized, Overloaded
from mainstem.protocols.connection import HOLD_QUEUE
from mainstem.protocols.mqtt.packets import Connect
from mainstem.protocols.mqtt.reasons import Reason, Violation, reason_of

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection


def log_in(connection: MqttConnection, connect: Connect) -> None:
    """Ends in `connection.admit` or `connection.turn_away`."""
    name = (connect.username or b"").decode(errors="replace")
    password = connect.password or b""
    principal = connection.service.broker.access.login_now(name, password)
    if principal is not None:
        connection.admit(connect, principal)
        return
    connection.hold(HOLD_QUEUE)
    asyncio.get_running_loop().create_task(_log_in(connection, connect, name, password))


async def _log_in(connection: MqttConnection, connect: Connect, name: str, password: bytes) -> None:
    peer = connection.transport.get_extra_info("peername") if connection.transport is not None else None
    address = str(peer[0]) if isinstance(peer, tuple) else ""
    try:
        principal = await connection.service.broker.access.login(name, password, address)
    except NotAuthorized:
        connection.turn_away(Reason.BAD_CREDENTIALS, f"login of {name[:100]!r} failed")
    except Overloaded as error:
        connection.turn_away(Reason.CONNECTION_RATE_EXCEEDED, error.message)
    else:
        if connection.closing:
            return
        try:
            connection.admit(connect, principal)
        except MainstemError as error:
            connection.refuse(Violation(reason_of(error), error.message))
        connection.release(HOLD_QUEUE)

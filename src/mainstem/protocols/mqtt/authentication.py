"""Enhanced authentication (MQTT 5, section 4.12): an exchange of AUTH packets before CONNACK, and again whenever the client
likes, which is how a token is renewed on a connection that stays.

    client                                          broker
    CONNECT  method, data        ───────────────▶
                                 ◀───────────────   AUTH 0x18  method, data       as often as the method asks
    AUTH 0x18  method, data      ───────────────▶
                                 ◀───────────────   CONNACK    method, data
    ...
    AUTH 0x19  method, data      ───────────────▶                                 the same exchange again
                                 ◀───────────────   AUTH 0x00  method, data

Methods are SASL's: SCRAM-SHA-256, SCRAM-SHA-512 and, where tokens are accepted, OAUTHBEARER.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainstem.broker.identity.login import Identity
from mainstem.broker.rights.access import Principal
from mainstem.model.errors import MainstemError, NotAuthorized, Overloaded
from mainstem.protocols.connection import HOLD_QUEUE
from mainstem.protocols.login import keep_login, shown_by
from mainstem.protocols.mqtt.connecting import Connecting
from mainstem.protocols.mqtt.login import chosen_namespace
from mainstem.protocols.mqtt.wire.packets import Auth, Connect, encode_auth
from mainstem.protocols.mqtt.wire.properties import Properties, Property
from mainstem.protocols.mqtt.wire.reasons import Reason, Violation, reason_of
from mainstem.protocols.sasl import HASHES, OAUTHBEARER, Bearer, Exchange, Scram

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection


class Authentication:
    """Of one connection whose CONNECT named a method."""

    def __init__(self, connection: MqttConnection, connect: Connect) -> None:
        self._connection, self._connect = connection, connect
        self._method: bytes = connect.properties[Property.AUTHENTICATION_METHOD]
        self._exchange: Exchange | None = None
        self.answer = b""  # what CONNACK carries

    @property
    def properties(self) -> Properties:
        told: Properties = {Property.AUTHENTICATION_METHOD: self._method}
        if self.answer:
            told[Property.AUTHENTICATION_DATA] = self.answer
        return told

    def begin(self) -> None:
        """CONNECT came. Ends in `Connecting.admit` or `connection.turn_away`."""
        connection = self._connection
        self._exchange = _exchange(self._method.decode(errors="replace"), connection.service.broker.identity)
        if self._exchange is None:
            connection.turn_away(Reason.BAD_AUTHENTICATION_METHOD, f"no method {self._method[:100]!r} is offered")
            return
        connection.inbound.authenticating = True
        self._step(self._connect.properties.get(Property.AUTHENTICATION_DATA, b""))

    def receive(self, auth: Auth) -> None:
        if auth.method != self._method:
            raise Violation(Reason.PROTOCOL_ERROR, "AUTH with another method than CONNECT's, or none")
        if auth.reason == Reason.REAUTHENTICATE and self._connection.state == "on" and self._exchange is None:
            self._exchange = _exchange(self._method.decode(), self._connection.service.broker.identity)
        elif auth.reason != Reason.CONTINUE_AUTHENTICATION or self._exchange is None:
            raise Violation(
                Reason.PROTOCOL_ERROR, f"AUTH with reason {auth.reason:#x}, which is not expected at this point"
            )
        self._step(auth.data)

    def _step(self, data: bytes) -> None:
        """Beside the loop, where it takes its time; nothing more of the client is read meanwhile."""
        self._connection.hold(HOLD_QUEUE)
        asyncio.get_running_loop().create_task(self._take(data))

    async def _take(self, data: bytes) -> None:
        connection = self._connection
        before = connection.principal
        namespace = chosen_namespace(self._connect) if before is None else before.namespace
        assert self._exchange is not None
        try:
            self.answer, principal = await self._exchange.step(
                data, connection.service.broker.identity, shown_by(connection, namespace=namespace)
            )
            if not connection.closing:
                self._go_on(before, principal)
        except MainstemError as error:
            self._fail(error)
        connection.release(HOLD_QUEUE)

    def _go_on(self, before: Principal | None, principal: Principal | None) -> None:
        connection = self._connection
        if principal is None:
            connection.outbound.write(encode_auth(Reason.CONTINUE_AUTHENTICATION, self.properties))
            return
        self._exchange = None
        connection.inbound.authenticating = False
        if before is None:
            Connecting(connection, self._connect).admit(principal)
        elif (principal.name, principal.namespace) != (before.name, before.namespace):
            raise NotAuthorized("it is another user than the one that connected")
        else:
            keep_login(connection, principal)
            connection.principal = principal
            connection.rights_changed()
            connection.outbound.write(encode_auth(Reason.SUCCESS, self.properties))

    def _fail(self, error: MainstemError) -> None:
        connection = self._connection
        if connection.closing:
            return
        if connection.state == "on":
            connection.refuse(Violation(Reason.NOT_AUTHORIZED, f"it could not authenticate again: {error.message}"))
        elif isinstance(error, Overloaded):
            connection.turn_away(Reason.CONNECTION_RATE_EXCEEDED, error.message)
        elif isinstance(error, NotAuthorized):
            connection.turn_away(Reason.BAD_CREDENTIALS, "the authentication failed")
        else:
            connection.turn_away(reason_of(error), error.message)


def _exchange(method: str, identity: Identity) -> Exchange | None:
    if method in HASHES:
        return Scram(method)
    return Bearer() if method == OAUTHBEARER and identity.tokens is not None else None

"""Who an AMQP connection is: PLAIN and AMQPLAIN, OAUTHBEARER where tokens are taken, EXTERNAL where it has a certificate.

A token may come as PLAIN's password, too. Who came with one shows the next by `connection.update-secret`, as with RabbitMQ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.broker.rights.access import Principal
from mainstem.protocols import login
from mainstem.protocols.amqp.faults import Fault
from mainstem.protocols.amqp.lifecycle import AMQPLAIN, EXTERNAL, OAUTHBEARER, PLAIN

if TYPE_CHECKING:
    from mainstem.protocols.amqp.adapter import AmqpConnection


def mechanisms_of(connection: AmqpConnection) -> tuple[str, ...]:
    found = [PLAIN, AMQPLAIN]
    if connection.server.broker.identity.tokens is not None:
        found.append(OAUTHBEARER)
    if connection.transport is not None and connection.transport.get_extra_info("peercert"):
        found.append(EXTERNAL)
    return tuple(found)


def log_in(connection: AmqpConnection, name: str, password: bytes, mechanism: str) -> None:
    shown = login.shown_by(connection, name, password, token_only=mechanism == OAUTHBEARER)
    identity, refused = connection.server.broker.identity, connection.lifecycle.refused
    login.log_in(connection, identity, shown, connection.let_in, lambda _: refused(), connection.drain)


def renew(connection: AmqpConnection, secret: bytes) -> None:
    """Other rights are not taken over halfway: whoever got some connects again."""
    lifecycle, before = connection.lifecycle, connection.principal
    if not before.by_token:
        lifecycle.renewed()
        return

    def let_stay(principal: Principal) -> None:
        if principal != before:
            refuse("it says something else of its user: connect again")
            return
        login.keep_login(connection, principal)
        lifecycle.renewed()

    def refuse(why: str) -> None:
        lifecycle.close(Fault(403, f"the new secret was refused: {why}", hard=True))

    shown = login.shown_by(connection, before.name, secret, namespace=before.namespace, token_only=True)
    identity = connection.server.broker.identity
    login.log_in(connection, identity, shown, let_stay, lambda error: refuse("wrong token"), connection.drain)

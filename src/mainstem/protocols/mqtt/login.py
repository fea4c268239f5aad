"""Who a CONNECT is: by user name and password, a token as its password, or the certificate of its connection.

Who belongs to several namespaces says which by the user property `ms-namespace`, or in the name (`namespace:user`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.broker.rights.access import Principal
from mainstem.model.errors import MainstemError, Overloaded
from mainstem.protocols import login
from mainstem.protocols.mqtt.connecting import Connecting
from mainstem.protocols.mqtt.wire.packets import Connect
from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.protocols.mqtt.wire.reasons import Reason, Violation, reason_of
from mainstem.protocols.porter import stays

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection

NAMESPACE_PROPERTY = "ms-namespace"


def log_in(connection: MqttConnection, connect: Connect) -> None:
    """Ends in `Connecting.admit` or `connection.turn_away`."""
    name = (connect.username or b"").decode(errors="replace")

    def admitted(principal: Principal) -> None:
        if not stays(connection, principal):
            return
        connection.outbound.transport = connection.transport  # a porter may have stepped aside
        try:
            Connecting(connection, connect).admit(principal)
        except MainstemError as error:
            connection.refuse(Violation(reason_of(error), error.message))

    def refused(error: MainstemError) -> None:
        if isinstance(error, Overloaded):
            connection.turn_away(Reason.CONNECTION_RATE_EXCEEDED, error.message)
        else:
            connection.turn_away(Reason.BAD_CREDENTIALS, f"login of {name[:100]!r} failed")

    shown = login.shown_by(connection, name, connect.password or b"", namespace=chosen_namespace(connect))
    login.log_in(connection, connection.service.broker.identity, shown, admitted, refused)


def chosen_namespace(connect: Connect) -> str:
    given = connect.properties.get(Property.USER_PROPERTY, ())
    return next((_text(value) for name, value in given if _text(name) == NAMESPACE_PROPERTY), "")


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value

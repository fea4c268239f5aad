"""A session belongs to its user: who took its client id would take its messages.

Another user is refused as long as the owner exists, whether the session is connected or only stored. What a removed user
left ends, and nobody inherits it. Until users exist nobody is told from anybody, and a session stored then, or by a version
that did not write users down, belongs to the next user who logs in with its client id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.broker.rights.access import Principal

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.service import MqttService


def may_take(service: MqttService, key: bytes, principal: Principal) -> bool:
    """Whether this user may connect with the client id of `key`."""
    other = service.clients.get(key)
    if other is not None and other.principal is not None and not _are_one(other.principal, principal):
        return False
    saved = service.sessions.find(key)
    if saved is None or principal.anonymous or saved.user in ("", principal.name):
        return True
    if saved.user in service.broker.access.users:
        return False
    service.end_session(saved)
    return True


def owner_of(principal: Principal) -> str:
    """What is stored with the session."""
    return "" if principal.anonymous else principal.name


def _are_one(one: Principal, other: Principal) -> bool:
    return one.anonymous or other.anonymous or one.name == other.name

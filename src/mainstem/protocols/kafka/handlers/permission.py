"""May this client do that? One question for all handlers; the rules are the broker's, on canonical topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.broker.access import Action

if TYPE_CHECKING:
    from mainstem.protocols.kafka.adapter import Request

NOT_ASKED = -(1 << 31)
# Kafka's operation numbers, as bits of "authorized operations".
_TOPIC_BITS = {
    Action.CONSUME: 1 << 3,
    Action.PUBLISH: 1 << 4,
    Action.CREATE: 1 << 5,
    Action.DELETE: 1 << 6,
    Action.CONFIGURE: 1 << 7 | 1 << 11,
    Action.DESCRIBE: 1 << 8 | 1 << 10,
}
GROUP_BITS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
CLUSTER_BITS = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12


def may(request: Request, action: Action, topic: bytes) -> bool:
    return request.service.access.allows(request.principal, action, topic)


def may_see(request: Request, topic: bytes) -> bool:
    """Who may read or write a topic may also know of it."""
    return any(may(request, action, topic) for action in (Action.DESCRIBE, Action.CONSUME, Action.PUBLISH))


def is_admin(request: Request) -> bool:
    return request.principal.admin


def topic_operations(request: Request, topic: bytes) -> int:
    return sum(bits for action, bits in _TOPIC_BITS.items() if may(request, action, topic))

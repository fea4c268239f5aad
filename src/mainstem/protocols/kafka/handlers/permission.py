"""May this client do that? One question for all handlers; the rules are the broker's, on canonical topics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mainstem.broker.rights.access import Action, Kind
from mainstem.broker.rights.rules import CLUSTER_NAME
from mainstem.model.errors import InvalidName
from mainstem.model.topic import topic_of_kafka
from mainstem.protocols import login
from mainstem.protocols.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from mainstem.protocols.kafka.adapter import Request
    from mainstem.protocols.kafka.kafka_topics import KafkaTopic

Handler = Callable[["Request"], Any]
NOT_ASKED = -(1 << 31)
INTERNAL = b"$"  # the broker's own: as wildcards of MQTT do, patterns of Kafka clients pass them over
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


def may_create(request: Request, topic: bytes) -> bool:
    """By a rule on the topic, or by one on the cluster where none denies the topic; that opens no internal ones."""
    if may(request, Action.CREATE, topic):
        return True
    access, principal = request.service.access, request.principal
    said = access.judges(principal, Action.CREATE, Kind.CLUSTER, CLUSTER_NAME)
    return bool(said) and not topic.startswith(INTERNAL) and not access.denies(principal, Action.CREATE, topic)


def must(request: Request, action: Action, topic: bytes) -> bool:
    """The same of what the client does now: a refusal is told by the audit."""
    if may(request, action, topic):
        return True
    tell_refused(request, action.value, topic)
    return False


def tell_refused(request: Request, action: str, name: str | bytes) -> None:
    login.tell_refused(request.connection, request.service.broker.audit, action, name)


def may_see(request: Request, topic: bytes) -> bool:
    """Who may read or write a topic may also know of it, unless a rule denies just that."""
    if request.service.access.denies(request.principal, Action.DESCRIBE, topic):
        return False
    return any(may(request, action, topic) for action in (Action.DESCRIBE, Action.CONSUME, Action.PUBLISH))


def absent(request: Request, name: str, action: Action = Action.DESCRIBE) -> ErrorCode:
    """What is said of a topic that is not there. Who may not know of it hears the same as if it were."""
    canonical = topic_of_kafka(name)
    known = may_see(request, canonical) or may(request, action, canonical)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def may_see_each(request: Request, names: Iterable[str] | None) -> bool:
    """Of the topics that a member of a group subscribes to by name; what is no name subscribes to nothing."""
    for name in names or ():
        with contextlib.suppress(InvalidName):
            if not may_see(request, topic_of_kafka(name)):
                tell_refused(request, "describe", name)
                return False
    return True


def denied(request: Request, topic: KafkaTopic) -> Sequence[bytes]:
    """What rules deny the client of a view."""
    if topic.view is None:
        return ()
    return request.service.access.denied_filters(request.principal, Action.CONSUME)


def may_group(request: Request, action: Action, group_id: str) -> bool:
    """Groups belong to users (`broker/rights/owners.py`); who uses one that is nobody's owns it from then on."""
    groups, key = request.service.groups, request.group_key(group_id)
    return _may_own(request, action, Kind.GROUP, group_id, exists=key in groups.groups or key in groups.offsets)


def may_transact(request: Request, action: Action, transactional_id: str) -> bool:
    exists = request.group_key(transactional_id) in request.service.transactions.by_id
    return _may_own(request, action, Kind.TRANSACTION, transactional_id, exists=exists)


def _may_own(request: Request, action: Action, kind: Kind, name: str, *, exists: bool) -> bool:
    owners, namespace = request.service.broker.owners, request.namespace.name
    asked = owners.use if action in (Action.CONSUME, Action.PUBLISH) else owners.may
    return asked(request.principal, action, kind, namespace, name, exists=exists)


def of_group(action: Action, handler: Handler, response: type[Any]) -> Handler:
    """The handler of a request about one group, for those who may do this with it."""

    def answer(request: Request) -> Any:
        if not may_group(request, action, request.body.group_id or ""):
            tell_refused(request, action.value, f"group {request.body.group_id or ''}")
            return response(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return handler(request)

    return answer


def of_transaction(handler: Handler, response: type[Any]) -> Handler:
    """The same for a transactional id; without one there is nothing to ask."""

    def answer(request: Request) -> Any:
        name = request.body.transactional_id
        if name is not None and not may_transact(request, Action.PUBLISH, name):
            tell_refused(request, "publish", f"transactional id {name}")
            return response(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return handler(request)

    return answer


def is_admin(request: Request) -> bool:
    return request.principal.admin


def topic_operations(request: Request, topic: bytes) -> int:
    return sum(bits for action, bits in _TOPIC_BITS.items() if may(request, action, topic))

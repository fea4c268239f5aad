"""RabbitMQ's policies by its management API: /api/policies[/vhost[/name]]. What they do: broker/queues/policies.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.broker.queues.policies import Policy, policy_of
from mainstem.broker.queues.registry import Queues
from mainstem.model.errors import InvalidArgument

if TYPE_CHECKING:
    from mainstem.admin.rabbit_api import Call

CREATED, NO_CONTENT = 201, 204


def rows(queues: Queues) -> list[dict[str, Any]]:
    return [_row(queues, one) for one in queues.policies.by_name.values()]


def _row(queues: Queues, policy: Policy) -> dict[str, Any]:
    return {"vhost": queues.namespace.name, "name": policy.name, **policy.to_document()}


def listed(call: Call, vhost: str | None = None) -> list[Any]:
    return [row for queues in call.vhosts(vhost) for row in rows(queues)]


def described(call: Call, vhost: str, name: str) -> Any:
    queues = call.vhost(vhost)
    return _row(queues, queues.policies.get(name))


async def put(call: Call, vhost: str, name: str) -> tuple[int, Any]:
    if not isinstance(call.body, dict):
        raise InvalidArgument("the body must be a JSON object", fix='{"pattern": "^orders", "definition": {...}}')
    queues = call.vhost(vhost)
    known = name in queues.policies.by_name
    await queues.policies.put(policy_of(name, call.body, queues.namespace.name))
    await queues.policies.apply()
    return (NO_CONTENT if known else CREATED), None


async def remove(call: Call, vhost: str, name: str) -> tuple[int, Any]:
    queues = call.vhost(vhost)
    await queues.policies.remove(name)
    await queues.policies.apply()
    return NO_CONTENT, None

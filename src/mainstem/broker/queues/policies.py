"""Policies, as RabbitMQ has them: limits for every queue of a namespace whose name matches a pattern.

A queue obeys one policy: the one with the highest priority of those that match its name and kind, and of equals the first
by name. What a queue was declared with stays as it is (`Queue.declared`); what it obeys (`Queue.settings`) is both together:

    message-ttl, expires, max-length, max-length-bytes, delivery-limit    the smaller of the two
    overflow, dead-letter-exchange, dead-letter-routing-key               the queue's own argument, else the policy's
    max-age, max-length-bytes                                             of streams, which obey nothing else

A policy that is put or removed acts at once on the queues that are there, in slices. Limits: POLICIES_MAX a namespace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mainstem.broker.queues.declaring import POLICY_KEYS, age_seconds, queue_settings
from mainstem.broker.queues.settings import Kind, QueueSettings
from mainstem.metadata.rows import Item, ItemKind
from mainstem.metadata.store import Written
from mainstem.model.errors import InvalidArgument, NotFound, Overloaded
from mainstem.model.pattern import Pattern

if TYPE_CHECKING:
    from mainstem.broker.queues.registry import Queues

POLICIES_MAX = 1_000
_SMALLER = ("message_ttl_ms", "expires_ms", "length_max", "bytes_max", "deliveries_max")
_OWN_FIRST = {
    "overflow": "x-overflow",
    "dead_letter_exchange": "x-dead-letter-exchange",
    "dead_letter_key": "x-dead-letter-routing-key",
}
_KINDS = {
    "queues": frozenset(Kind),
    "all": frozenset(Kind),
    "classic_queues": frozenset((Kind.CLASSIC,)),
    "quorum_queues": frozenset((Kind.QUORUM,)),
    "streams": frozenset((Kind.STREAM,)),
}
APPLY_TO = tuple(_KINDS)


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    pattern: Pattern
    definition: dict[str, Any]  # as it was put
    limits: QueueSettings  # what it says, in the broker's words
    age_max_ms: int | None  # of a stream's records
    priority: int = 0
    apply_to: str = "all"

    def to_document(self) -> dict[str, Any]:
        return {
            "pattern": self.pattern.text,
            "definition": self.definition,
            "priority": self.priority,
            "apply-to": self.apply_to,
        }

    def fits(self, name: str, kind: Kind) -> bool:
        return kind in _KINDS[self.apply_to] and self.pattern.matches(name)

    def limiting(self, declared: QueueSettings) -> QueueSettings:
        """What a queue that was declared so obeys."""
        if declared.kind is Kind.STREAM:
            ages = [one for one in (declared.message_ttl_ms, self.age_max_ms) if one is not None]
            sizes = [one for one in (declared.bytes_max, self.limits.bytes_max) if one is not None]
            return replace(declared, message_ttl_ms=min(ages, default=None), bytes_max=min(sizes, default=None))
        changes: dict[str, Any] = {}
        for field in _SMALLER:
            own, ours = getattr(declared, field), getattr(self.limits, field)
            if field == "deliveries_max" and "x-delivery-limit" not in declared.arguments:
                own = 0  # a default of the kind, which a policy replaces
            if ours:
                changes[field] = min(own, ours) if own else ours
            elif ours is not None and field != "deliveries_max":  # 0: keep nothing
                changes[field] = 0
        for field, argument in _OWN_FIRST.items():
            if argument not in declared.arguments and argument.removeprefix("x-") in self.definition:
                changes[field] = getattr(self.limits, field)
        return replace(declared, **changes)


class QueuePolicies:
    """The policies of one namespace."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.by_name: dict[str, Policy] = {}
        self._ordered: list[Policy] = []  # the first that fits is the one

    def load(self, item: Item) -> None:
        self.by_name[item.name] = policy_of(item.name, item.body, item.namespace)
        self._order()

    def get(self, name: str) -> Policy:
        found = self.by_name.get(name)
        if found is None:
            raise NotFound(f"no policy {name!r} in namespace {self._queues.namespace.name!r}")
        return found

    def of(self, name: str, kind: Kind) -> Policy | None:
        return next((one for one in self._ordered if one.fits(name, kind)), None)

    def effective(self, name: str, declared: QueueSettings) -> QueueSettings:
        policy = self.of(name, declared.kind)
        return declared if policy is None else policy.limiting(declared)

    def put(self, policy: Policy) -> Written:
        if policy.name not in self.by_name and len(self.by_name) >= POLICIES_MAX:
            raise Overloaded(f"namespace {self._queues.namespace.name!r} has {POLICIES_MAX} policies")
        store = self._queues.service.broker.store
        store.check_room()
        self.by_name[policy.name] = policy
        self._order()
        return store.put_item(ItemKind.QUEUE_POLICY, self._queues.namespace.name, policy.name, policy.to_document())

    def remove(self, name: str) -> Written:
        self.get(name)
        del self.by_name[name]
        self._order()
        return self._queues.service.broker.store.delete_item(ItemKind.QUEUE_POLICY, self._queues.namespace.name, name)

    async def apply(self) -> None:
        """To the queues that are there; new ones are made with it."""
        work = self._queues.service.broker.turns.slices(self._queues.namespace.name)
        for queue in self._queues:
            if work.over:
                await work.next()
            if not queue.deleted:
                self._queues.limit(queue)

    def _order(self) -> None:
        self._ordered = sorted(self.by_name.values(), key=lambda one: (-one.priority, one.name))


def policy_of(name: str, body: dict[str, Any], vhost: str) -> Policy:
    """Checked as the arguments of a declaration are, whose names these are."""
    definition = body.get("definition")
    if not isinstance(definition, dict) or not definition:
        raise InvalidArgument(f"policy {name!r} has no definition", fix='"definition": {"max-length": 1000}')
    apply_to = body.get("apply-to", "all")
    if apply_to not in _KINDS:
        raise InvalidArgument(
            f"policy {name!r} applies to {apply_to!r}; here policies apply to queues",
            fix=f"one of {', '.join(APPLY_TO)}",
        )
    priority = body.get("priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidArgument(f"the priority of policy {name!r} is not a number: {priority!r}")
    if not isinstance(body.get("pattern"), str):
        raise InvalidArgument(f"policy {name!r} has no pattern", fix='"pattern": "^orders"')
    strange = sorted(set(definition) - set(POLICY_KEYS))
    if strange:
        raise InvalidArgument(
            f"policy {name!r}: {', '.join(strange)} are not recognised policy settings",
            fix=f"one of {', '.join(POLICY_KEYS)}",
        )
    arguments = {f"x-{key}": value for key, value in definition.items() if key != "max-age"}
    if "x-dead-letter-routing-key" in arguments:
        arguments.setdefault("x-dead-letter-exchange", "")  # the queue's own argument may name it
    asked = {"queue": name, "durable": True, "exclusive": False, "auto_delete": False, "arguments": arguments}
    age_s = age_seconds(definition["max-age"]) if "max-age" in definition else None
    if age_s is None and "max-age" in definition:
        raise InvalidArgument(f"policy {name!r}: max-age is {definition['max-age']!r}", fix="such as 7D, 12h or 30m")
    age_max_ms = None if age_s is None else age_s * 1000
    pattern = Pattern(body["pattern"], anywhere=True)
    return Policy(name, pattern, definition, queue_settings(asked, vhost), age_max_ms, priority, apply_to)

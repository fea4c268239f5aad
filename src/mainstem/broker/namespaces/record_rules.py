"""What a record of a topic may be: its size, and the schema of its value. Asked before it is published, by any protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mainstem.broker.schemas.enforcement import DEAD, DEAD_LETTER, REASON, dead_letter_topic, invalid_record, misfit_of
from mainstem.log.live_log import not_stored
from mainstem.model.errors import MessageTooLarge
from mainstem.model.origin import RecordFlag

if TYPE_CHECKING:
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.broker.topics.policy import Policy
    from mainstem.model.record import Header

UNCHECKED = (DEAD, b"$")  # a dead letter is not set aside again, and the broker's own topics have no schema
NEEDS_STORING = RecordFlag.QOS_1 | RecordFlag.QOS_2 | RecordFlag.RETAIN
SETTINGS = {"message_bytes_max", "schema", "schema_mode"}  # of a policy


class RecordRules:
    __slots__ = ("_by_filter", "_namespace")

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._by_filter = False  # whether a rule of the namespace says what a record may be

    def use(self, rules: Mapping[bytes, Mapping[str, Any]]) -> None:
        self._by_filter = any(SETTINGS & changes.keys() for changes in rules.values())

    def policy(self, topic: bytes) -> Policy:
        """The topic's, as far as it says what a record may be."""
        namespace = self._namespace
        declared = namespace.topics.get(topic)
        if declared is not None:
            return declared.policy
        return namespace.policy(topic) if self._by_filter else namespace.defaults

    def admit(self, topic: bytes, value: bytes | None, headers: Sequence[Header]) -> tuple[bytes, Sequence[Header]]:
        """Where it is published: to its topic, or (with the reason) to the dead-letter topic; or refused."""
        policy = self.policy(topic)
        self._check_size(topic, value, policy)
        if policy.schema and (why := self._misfit(topic, policy, value)):
            if policy.schema_mode != DEAD_LETTER:
                raise invalid_record(topic, policy, why)
            return dead_letter_topic(topic), [*headers, (REASON, why.encode())]
        return topic, headers

    def allows(self, topic: bytes, value: bytes) -> bool:
        """Whether the value matches the topic's schema, if it has one."""
        return not self._misfit(topic, self.policy(topic), value)

    def check(self, topic: bytes, value: bytes | None, flags: int = 0) -> None:
        """What is published later is refused now."""
        policy = self.policy(topic)
        if flags & NEEDS_STORING and not self._namespace.stores(topic):
            raise not_stored(topic)
        self._check_size(topic, value, policy)
        if policy.schema and policy.schema_mode != DEAD_LETTER and (why := self._misfit(topic, policy, value)):
            raise invalid_record(topic, policy, why)

    def _misfit(self, topic: bytes, policy: Policy, value: bytes | None) -> str:
        return "" if topic.startswith(UNCHECKED) else misfit_of(self._namespace, policy, value)

    def _check_size(self, topic: bytes, value: bytes | None, policy: Policy) -> None:
        limit = policy.message_bytes_max
        if value is not None and len(value) > limit:
            raise MessageTooLarge(
                f"message of {len(value)} bytes for {topic.decode(errors='replace')!r}; the limit is {limit}",
                fix=f"mainstem topic alter {topic.decode(errors='replace')} --set message_bytes_max={len(value)}",
            )

"""What a namespace was given: its own defaults for topics, and its quotas. They rest in its metadata row:

    options = {"policy": {setting: value, ...}, "auto_create": true | false, "quota": {limit: value, ...}}

Everything is optional. What is missing is the configuration's (`[topics]`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Self

from mainstem.broker.namespaces.quotas import NAMESPACE, NO_LIMITS, Limits
from mainstem.broker.topics.policy import Policy, check_values, known_of
from mainstem.model.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class NamespaceSettings:
    policy: Mapping[str, Any] = field(default_factory=dict)  # what it changes of the configuration's [topics]
    auto_create: bool | None = None  # None: as the configuration says
    quota: Limits = NO_LIMITS

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        quota = Limits.of_document(document.get("quota") or {})
        return cls(known_of(document.get("policy") or {}), document.get("auto_create"), quota)

    def to_document(self) -> dict[str, Any]:
        document: dict[str, Any] = {}
        if self.policy:
            document["policy"] = dict(self.policy)
        if self.auto_create is not None:
            document["auto_create"] = self.auto_create
        if self.quota != NO_LIMITS:
            document["quota"] = self.quota.to_document()
        return document

    def changed(self, given: Mapping[str, Any], defaults: Policy) -> NamespaceSettings:
        """With some of it set anew; a value of None goes back to the configuration's. Whatever is wrong is told here."""
        known = ("policy", "auto_create", "quota")
        for name in given:
            if name not in known:
                near = get_close_matches(name, known, 1)
                raise InvalidArgument(
                    f"unknown setting of a namespace {name!r}; {f'did you mean {near[0]}?' if near else ', '.join(known)}"
                )
        policy = dict(self.policy)
        for name, value in (given.get("policy") or {}).items():
            if value is None:
                policy.pop(name, None)
            else:
                policy[name] = value
        check_values(policy)
        defaults.with_changes(policy)
        auto_create = given.get("auto_create", self.auto_create)
        return NamespaceSettings(policy, auto_create, self.quota.changed(given.get("quota") or {}, NAMESPACE))

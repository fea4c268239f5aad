"""A principal as one broker tells another: the client it let in belongs to a cell of the other's."""

from __future__ import annotations

from typing import Any

from mainstem.broker.rights.access import Principal
from mainstem.broker.rights.rules import Rule


def to_document(principal: Principal) -> dict[str, Any]:
    return {
        "name": principal.name,
        "namespace": principal.namespace,
        "admin": principal.admin,
        "anonymous": principal.anonymous,
        "client": principal.client,
        "roles": list(principal.roles),
        "rules": [rule.to_document() for rule in principal.rules],
        "by_token": principal.by_token,
        "stranger": principal.stranger,
        "namespaces": list(principal.namespaces),
        "expires_s": principal.expires_s,
    }


def of_document(document: dict[str, Any]) -> Principal:
    known = {name: document[name] for name in document if name in Principal.__dataclass_fields__}
    rules = tuple(Rule.of_document(one) for one in known.pop("rules", ()))
    known |= {name: tuple(known.get(name, ())) for name in ("roles", "namespaces")}
    return Principal(**known, rules=rules)

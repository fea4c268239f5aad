"""Users as they are kept, and principals: who a connection is, once logged in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mainstem.broker.namespaces.quotas import NO_LIMITS, Limits
from mainstem.broker.rights.rules import Names, Rule

Hashed = dict[str, Any]  # what is kept of a password


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a connection is, once logged in."""

    name: str
    namespace: str = "/"
    admin: bool = False
    anonymous: bool = False  # let in because no user exists yet
    client: str = ""  # the client's id, where a rule of this user asks for it (`Access.of_client`)
    roles: tuple[str, ...] = ()  # that its token names, beside the user's own
    rules: tuple[Rule, ...] = ()  # as its token says
    by_token: bool = False
    stranger: bool = False  # by a token, and the broker itself knows no user of this name
    namespaces: tuple[str, ...] = ()  # of a stranger: those it may choose from
    expires_s: int = field(default=0, compare=False)  # since 1970; 0: its login does not end by itself

    def __hash__(self) -> int:
        return hash(self.name)  # a text keeps its own: principals are looked up for each delivery

    @property
    def names(self) -> Names:
        return Names(self.name, self.client, self.namespace)


@dataclass(slots=True)
class User:
    name: str
    namespace: str
    admin: bool
    credentials: Hashed
    rules: list[Rule] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    quota: Limits = NO_LIMITS
    also: list[str] = field(default_factory=list)  # namespaces that it may choose instead of its own

    @property
    def namespaces(self) -> tuple[str, ...]:
        return (self.namespace, *self.also)

    @property
    def nkey(self) -> str:
        return str(self.credentials.get("nkey") or "")

    def to_document(self) -> dict[str, Any]:
        quota = {"quota": self.quota.to_document()} if self.quota != NO_LIMITS else {}
        return {
            **quota,
            **({"also": self.also} if self.also else {}),
            "user_namespace": self.namespace,
            "admin": self.admin,
            "credentials": self.credentials,
            "rules": [rule.to_document() for rule in self.rules],
            "roles": self.roles,
        }

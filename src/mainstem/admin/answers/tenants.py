"""What the API answers of namespaces, users and rules."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from mainstem.admin.answers import Deleted, says


class NamespaceRow(TypedDict):
    name: str
    cell: NotRequired[Annotated[str, says("In a cluster, where another broker owns it: then nothing else is known.")]]
    owner: NotRequired[Annotated[str | None, says("Of that cell.")]]
    topics: NotRequired[int]
    views: NotRequired[int]
    queues: NotRequired[int]
    users: NotRequired[Annotated[int, says("That belong to it.")]]
    connections: NotRequired[Annotated[int, says("Of its clients.")]]
    stored_bytes: NotRequired[int]


class Use(TypedDict):
    used: int
    limit: int
    left: int
    near: Annotated[bool, says("Whether little is left.")]


class NamespaceFacts(NamespaceRow):
    user_names: list[str]
    policy: Annotated[dict[str, Any], says("What its topics begin with, where that is not the configuration's.")]
    auto_create: bool | None
    quota: Annotated[dict[str, Any], says("Limits by name.")]
    use: dict[str, Use]
    contents: Annotated[dict[str, int], says("What it holds, by kind.")]


class RemovedNamespace(Deleted):
    contents: dict[str, int]


class RuleDocument(TypedDict):
    allow: bool
    actions: list[str]
    filter: str
    kind: NotRequired[Annotated[str, says("Left out: topic.")]]
    match: NotRequired[Annotated[str, says("Left out: pattern.")]]


class UserRow(TypedDict):
    name: str
    namespace: Annotated[str, says("Where it is without a choice.")]
    also: Annotated[list[str], says("Other namespaces it may choose.")]
    admin: Annotated[bool, says("Whether it may do everything.")]
    rules: Annotated[list[RuleDocument], says("Of its own.")]
    roles: Annotated[list[str], says("Whose rules it has too.")]
    nkey: Annotated[str, says("Its NATS key.")]
    quota: Annotated[dict[str, Any], says("Its limits by name.")]


class UserFacts(UserRow):
    use: dict[str, Use]


class ImportedUsers(TypedDict):
    added: list[str]
    skipped: Annotated[dict[str, str], says("By name: why.")]
    left_out: Annotated[dict[str, Any], says("By name: what of it has no counterpart.")]


class Explanation(TypedDict):
    user: str
    action: str
    filter: str
    allowed: bool
    why: Annotated[list[str], says("The rules that decide it, or what is missing.")]


class RoleFacts(TypedDict):
    name: str
    rules: list[RuleDocument]
    users: Annotated[list[str], says("Who has it.")]


class KeptRules(TypedDict):
    user: Annotated[str, says("A name that no user of the namespace has.")]
    namespace: str
    rules: list[RuleDocument]

"""Deciding what somebody may do, by the rules of `access.py`. Decisions are cached until any rule changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mainstem.broker.rights.people import Principal, User
from mainstem.broker.rights.rules import AUDIT_TOPIC, Action, Kind, Rule
from mainstem.model.errors import NotAuthorized
from mainstem.model.topic_filter import filter_levels, literal_filter

DECISIONS_MAX = 100_000  # cached; beyond it the cache starts over
SCHEMAS_TOPIC = b"_schemas"
BROKERS_OWN = (SCHEMAS_TOPIC, AUDIT_TOPIC)
WRITES = (Action.PUBLISH, Action.CREATE, Action.CONFIGURE, Action.DELETE)
EVERYBODY = "*"  # the role that every user has


class Decisions:
    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self.roles: dict[str, list[Rule]] = {}
        self.kept: dict[tuple[str, str], list[Rule]] = {}  # by namespace and name: of names that no user has
        self._decisions: dict[tuple[Principal, str, bytes], bool] = {}
        self._coverages: dict[tuple[Principal, str, bytes], bool] = {}

    def rules_of(self, principal: Principal) -> Iterator[tuple[str, Rule]]:
        """Each with whose it is: the user's own first, then those of its roles, then everybody's.

        Who is known by a token alone has the rules that are kept for its name in its namespace.
        """
        user = self.users.get(principal.name)
        if user is None and not principal.stranger:
            return
        for rule in user.rules if user is not None else self.kept.get((principal.namespace, principal.name), ()):
            yield f"user {principal.name}", rule
        for rule in principal.rules:
            yield f"token of {principal.name}", rule
        own = user.roles if user is not None else ()
        for role in (*dict.fromkeys((*own, *principal.roles)), EVERYBODY):
            for rule in self.roles.get(role, ()):
                yield f"role {role}", rule

    def of_client(self, principal: Principal, client_id: str) -> Principal:
        """The same, with its client id if one of its rules asks for it; else all clients of a user share what is kept."""
        if principal.admin or not any("%c" in rule.filter for _, rule in self.rules_of(principal)):
            return principal
        return replace(principal, client=client_id)

    def allows(self, principal: Principal, action: Action, topic: bytes) -> bool:
        """Whether this action is allowed on this very topic. Registry and audit alone write their own, for everybody."""
        if topic in BROKERS_OWN and action in WRITES:
            return False
        if principal.admin:
            return True
        key = (principal, action.value, topic)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            levels = filter_levels(literal_filter(topic))
            decision = self._decide(principal, action, levels)
            self._decisions[key] = decision
        return decision

    def allows_filter(self, principal: Principal, action: Action, topic_filter: bytes) -> bool:
        """Whether a rule allows everything the filter may match, save what another denies (checked per delivery)."""
        if principal.admin:
            return True
        key = (principal, action.value, topic_filter)
        decision = self._coverages.get(key)
        if decision is None:
            if len(self._coverages) >= DECISIONS_MAX:
                self._coverages.clear()
            decision = self._decide(principal, action, filter_levels(topic_filter))
            self._coverages[key] = decision
        return decision

    def allows_all(self, principal: Principal, action: Action, topic_filter: bytes) -> bool:
        """Whether everything the filter may match is allowed: for what is not asked again for each delivery."""
        if principal.admin:
            return True
        return not self.denies_some(principal, action, topic_filter) and self.allows_filter(
            principal, action, topic_filter
        )

    def denies_some(self, principal: Principal, action: Action, topic_filter: bytes) -> bool:
        """Whether something the filter may mean is denied: by a rule, not for want of one."""
        if principal.admin:
            return False
        levels, names = filter_levels(topic_filter), principal.names
        return levels[0] == AUDIT_TOPIC or any(
            rule.overlaps_topics(levels, names)
            for _, rule in self.rules_of(principal)
            if not rule.allow and rule.kind is Kind.TOPIC and action in rule.actions
        )

    def denies(self, principal: Principal, action: Action, topic: bytes) -> bool:
        """Whether a rule denies this very topic; what no rule speaks of is not denied."""
        if topic in BROKERS_OWN and action in WRITES:
            return True
        if principal.admin:
            return False
        key = (principal, f"deny {action}", topic)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            levels, names = filter_levels(literal_filter(topic)), principal.names
            decision = self._decisions[key] = topic == AUDIT_TOPIC or any(
                rule.covers_topics(levels, names)
                for _, rule in self.rules_of(principal)
                if not rule.allow and rule.kind is Kind.TOPIC and action in rule.actions
            )
        return decision

    def explain(self, principal: Principal, action: Action, topic_filter: bytes) -> tuple[bool, list[str]]:
        """Whether everything the filter means is allowed, and why: the rules that decide it, or what is missing."""
        if principal.admin:
            return True, [f"user {principal.name} is an admin"]
        levels, names = filter_levels(topic_filter), principal.names
        rules = [(whose, rule) for whose, rule in self.rules_of(principal) if rule.kind is Kind.TOPIC]
        rules = [(whose, rule) for whose, rule in rules if action in rule.actions]
        if levels[0] == AUDIT_TOPIC:
            return False, ["$audit is for admins"]
        denying = [
            f"{whose}: {rule}" for whose, rule in rules if not rule.allow and rule.overlaps_topics(levels, names)
        ]
        allowing = [f"{whose}: {rule}" for whose, rule in rules if rule.allow and rule.covers_topics(levels, names)]
        if denying:
            return False, denying
        return bool(allowing), allowing or [f"no rule allows {action} on all of it"]

    def denied_filters(self, principal: Principal, action: Action) -> tuple[bytes, ...]:
        """What rules deny, as filters: for readers of many topics at once, such as a view's."""
        if principal.admin:
            return ()
        found = (
            rule.topic_filter(principal.names)
            for _, rule in self.rules_of(principal)
            if not rule.allow and rule.kind is Kind.TOPIC and action in rule.actions
        )
        return tuple(sorted({AUDIT_TOPIC, *(one for one in found if one is not None)}))

    def judges(self, principal: Principal, action: Action, kind: Kind, name: str) -> bool | None:
        """What the rules of a kind other than topics say of an object; None if none speaks of it."""
        if principal.admin:
            return True
        said: bool | None = None
        names = principal.names
        for _, rule in self.rules_of(principal):
            if rule.kind is kind and action in rule.actions and rule.covers_name(name, names):
                if not rule.allow:
                    return False
                said = True
        return said

    def allows_named(self, principal: Principal, action: Action, kind: Kind, name: str, topic: bytes) -> bool:
        """A queue or an exchange: by rules of its kind, or of the topic that its name is."""
        said = self.judges(principal, action, kind, name)
        if said is None:
            return self.allows(principal, action, topic)
        return said and not self.denies(principal, action, topic)

    def require(self, principal: Principal, action: Action, topic: bytes) -> None:
        if not self.allows(principal, action, topic):
            shown = topic.decode(errors="backslashreplace")
            raise NotAuthorized(
                f"user {principal.name} may not {action} {shown}",
                fix=f"mainstem user allow {principal.name} {action} '{shown}'",
            )

    def _decide(self, principal: Principal, action: Action, levels: list[bytes]) -> bool:
        allowed, names = False, principal.names
        if levels[0] == AUDIT_TOPIC:
            return False
        for _, rule in self.rules_of(principal):
            if action not in rule.actions or rule.kind is not Kind.TOPIC:
                continue
            if rule.covers_topics(levels, names):
                if not rule.allow:
                    return False
                allowed = True
        return allowed

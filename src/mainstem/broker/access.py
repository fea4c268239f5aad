"""Who may do what: one list of users and rules on canonical topics, for every protocol and the HTTP API.

Rules of this file:

- Until a user exists every login is accepted where the listener allows it (loopback, or the operator said so), and may
  do everything. From the first user on, nobody gets in without a login.
- A user may do what a rule allows and none denies: deny wins, no rule is no. An admin may do everything.
- A filter may be subscribed to if one allow rule covers all of it. It may overlap denied topics: each delivery is
  checked again.
- `%u` in a rule's filter is the user's own name. User names are single topic levels without wildcards.
- Decisions are cached until any rule changes; `version` tells, and `listeners` are called: sessions check again, and
  who came in by a login that no longer holds (`holds`) has to leave.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from mainstem.broker.credentials import ScramVerifier, make_credentials, scram_verifier, verify_password
from mainstem.metadata.rows import Item, ItemKind
from mainstem.metadata.store import MetadataStore, Written
from mainstem.model.clock import Clock, SystemClock
from mainstem.model.errors import AlreadyExists, InvalidArgument, InvalidName, NotAuthorized, NotFound, Overloaded
from mainstem.model.topic_filter import check_filter, covers, filter_levels, literal_filter, overlap

DECISIONS_MAX = 100_000  # cached; beyond it the cache starts anew
VERIFIED_MAX = 10_000  # logins verified lately, so that a storm of reconnects does not hash
VERIFIED_MS = 300_000
FAILURES_MAX = 10_000  # addresses and users counted
FAILURE_WINDOW_MS = 60_000
HASHING_MAX = 2  # logins hashed at once; the rest wait
Hashed = dict[str, Any]  # what is kept of a password
_USER_NAME = re.compile(r"[^\s/+#*>%:\x00-\x1f\x7f]{1,128}")


class Action(StrEnum):
    PUBLISH = "publish"
    CONSUME = "consume"
    CREATE = "create"
    CONFIGURE = "configure"
    DELETE = "delete"
    DESCRIBE = "describe"


@dataclass(frozen=True, slots=True)
class Rule:
    allow: bool
    actions: frozenset[Action]
    filter: str

    def to_document(self) -> dict[str, Any]:
        return {"allow": self.allow, "actions": sorted(self.actions), "filter": self.filter}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a connection is, once logged in."""

    name: str
    namespace: str = "/"
    admin: bool = False
    anonymous: bool = False  # let in because no user exists yet


@dataclass(slots=True)
class User:
    name: str
    namespace: str
    admin: bool
    credentials: Hashed
    rules: list[Rule] = field(default_factory=list)

    def to_document(self) -> dict[str, Any]:
        return {
            "user_namespace": self.namespace,
            "admin": self.admin,
            "credentials": self.credentials,
            "rules": [rule.to_document() for rule in self.rules],
        }


class Access:
    def __init__(
        self,
        store: MetadataStore,
        items: Iterable[Item] = (),
        *,
        clock: Clock | None = None,
        failures_max: int = 10,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self.users: dict[str, User] = {item.name: _user_of(item) for item in items if item.kind == ItemKind.USER}
        self.version = 0
        self.listeners: list[Callable[[], None]] = []
        self.failures_max = failures_max
        self.failures_total = 0
        self._decisions: dict[tuple[str, str, bytes], bool] = {}
        self._coverages: dict[tuple[str, str, bytes], bool] = {}
        self._verified: dict[bytes, int] = {}  # keyed digest of name and password → until when
        self._secret = os.urandom(32)
        self._failures: dict[str, list[int]] = {}  # [count, window's end]
        self._hashing = asyncio.Semaphore(HASHING_MAX)

    @property
    def open(self) -> bool:
        """No user exists: every login is accepted where the listener allows it."""
        return not self.users

    # -- logging in

    def login_now(self, name: str, password: bytes) -> Principal | None:
        """The answer if it costs nothing (no users yet, or verified lately), else None: await `login`."""
        if self.open:
            return Principal(name or "anonymous", admin=True, anonymous=True)
        user = self.users.get(name)
        until = self._verified.get(self._digest(name, password), 0)
        return self.principal(user) if user is not None and until > self._now_ms() else None

    async def login(self, name: str, password: bytes, address: str = "") -> Principal:
        """NotAuthorized for a wrong name or password alike; Overloaded after too many of them."""
        known = self.login_now(name, password)
        if known is not None:
            return known
        self._check_failures(address, name)
        user = self.users.get(name)
        credentials = user.credentials if user is not None else None
        async with self._hashing:
            right = await asyncio.to_thread(verify_password, credentials, password)
        if not right or user is None or self.users.get(name) is not user:
            self._count_failure(address, name)
            raise NotAuthorized("wrong user name or password")
        if len(self._verified) >= VERIFIED_MAX:
            self._verified.clear()
        self._verified[self._digest(name, password)] = self._now_ms() + VERIFIED_MS
        return self.principal(user)

    def principal(self, user: User) -> Principal:
        return Principal(user.name, user.namespace, user.admin)

    def holds(self, principal: Principal) -> bool:
        """Whether who logged in as this would still be let in as this; a changed password alone sends nobody away."""
        if principal.anonymous:
            return self.open
        user = self.users.get(principal.name)
        return user is not None and self.principal(user) == principal

    def scram(self, name: str, mechanism: str) -> ScramVerifier:
        """For Kafka's SASL/SCRAM; an unknown user has one that nothing fits."""
        user = self.users.get(name)
        return scram_verifier(user.credentials if user is not None else None, mechanism, name)

    def scram_done(self, name: str, right: bool, address: str = "") -> Principal:
        user = self.users.get(name)
        if not right or user is None:
            self._count_failure(address, name)
            raise NotAuthorized("wrong user name or password")
        return self.principal(user)

    def _digest(self, name: str, password: bytes) -> bytes:
        return hmac.digest(self._secret, name.encode() + b"\0" + password, hashlib.sha256)

    def _check_failures(self, address: str, name: str) -> None:
        for key in (f"address {address}", f"user {name}"):
            count, end = self._failures.get(key, (0, 0))
            if count >= self.failures_max and end > self._now_ms():
                raise Overloaded(f"too many failed logins of {key}; wait a minute")

    def _count_failure(self, address: str, name: str) -> None:
        self.failures_total += 1
        now = self._now_ms()
        for key in (f"address {address}", f"user {name}"):
            if len(self._failures) >= FAILURES_MAX:
                self._failures.clear()
            entry = self._failures.get(key)
            if entry is None or entry[1] <= now:
                self._failures[key] = [1, now + FAILURE_WINDOW_MS]
            else:
                entry[0] += 1

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    # -- deciding

    def allows(self, principal: Principal, action: Action, topic: bytes) -> bool:
        """Whether this action is allowed on this very topic."""
        if principal.admin:
            return True
        key = (principal.name, action.value, topic)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            levels = filter_levels(literal_filter(topic))
            decision = self._decide(principal.name, action, levels)
            self._decisions[key] = decision
        return decision

    def allows_filter(self, principal: Principal, action: Action, topic_filter: bytes) -> bool:
        """Whether a rule allows everything the filter may match, save what another denies (checked per delivery)."""
        if principal.admin:
            return True
        key = (principal.name, action.value, topic_filter)
        decision = self._coverages.get(key)
        if decision is None:
            if len(self._coverages) >= DECISIONS_MAX:
                self._coverages.clear()
            decision = self._decide(principal.name, action, filter_levels(topic_filter))
            self._coverages[key] = decision
        return decision

    def allows_all(self, principal: Principal, action: Action, topic_filter: bytes) -> bool:
        """Whether everything the filter may match is allowed: for what is not asked again for each delivery."""
        if principal.admin:
            return True
        user, levels = self.users.get(principal.name), filter_levels(topic_filter)
        denied = user is not None and any(
            overlap(_levels_of(rule, principal.name), levels)
            for rule in user.rules
            if not rule.allow and action in rule.actions
        )
        return not denied and self.allows_filter(principal, action, topic_filter)

    def require(self, principal: Principal, action: Action, topic: bytes) -> None:
        if not self.allows(principal, action, topic):
            shown = topic.decode(errors="backslashreplace")
            raise NotAuthorized(
                f"user {principal.name} may not {action} {shown}",
                fix=f"mainstem user allow {principal.name} {action} '{shown}'",
            )

    def _decide(self, name: str, action: Action, levels: list[bytes]) -> bool:
        user = self.users.get(name)
        if user is None:
            return False
        allowed = False
        for rule in user.rules:
            if action not in rule.actions:
                continue
            if covers(_levels_of(rule, name), levels):
                if not rule.allow:
                    return False
                allowed = True
        return allowed

    # -- changing

    async def hashed(self, password: str) -> Hashed:
        """Of a new password; what `add_user` and `set_password` take instead of it where the loop must not wait."""
        return await asyncio.to_thread(_hashed, password)

    def add_user(self, name: str, password: str | Hashed, *, admin: bool = False, namespace: str = "/") -> Written:
        if not _USER_NAME.fullmatch(name):
            raise InvalidName(f"user name {name!r}: 1 to 128 characters without spaces, / + # * > % :")
        if name in self.users:
            raise AlreadyExists(f"user {name} exists", fix=f"mainstem user passwd {name}")
        if not self.users and not admin:
            raise InvalidArgument("the first user must be an admin", fix=f"mainstem user add {name} --admin")
        return self._keep(User(name, namespace, admin, _hashed(password)))

    def set_password(self, name: str, password: str | Hashed) -> Written:
        user = self.user(name)
        return self._keep(User(name, user.namespace, user.admin, _hashed(password), user.rules))

    def remove_user(self, name: str) -> Written:
        user = self.user(name)
        if user.admin and sum(other.admin for other in self.users.values()) == 1 and len(self.users) > 1:
            raise InvalidArgument(f"{name} is the last admin; remove the other users first")
        del self.users[name]
        self._changed()
        return self._store.delete_item(ItemKind.USER, "", name)

    def add_rule(self, name: str, *, allow: bool, actions: Iterable[str], topic_filter: str) -> Written:
        user = self.user(name)
        try:
            wanted = frozenset(Action(action) for action in actions)
        except ValueError as error:
            raise InvalidArgument(f"{error}; actions are {', '.join(Action)}") from None
        check_filter(topic_filter.replace("%u", "u").encode())
        rule = Rule(allow, wanted, topic_filter)
        rules = [*(one for one in user.rules if one != rule), rule]
        return self._keep(User(name, user.namespace, user.admin, user.credentials, rules))

    def remove_rules(self, name: str, topic_filter: str) -> Written:
        user = self.user(name)
        rules = [rule for rule in user.rules if rule.filter != topic_filter]
        if len(rules) == len(user.rules):
            raise NotFound(f"user {name} has no rule for {topic_filter}")
        return self._keep(User(name, user.namespace, user.admin, user.credentials, rules))

    def user(self, name: str) -> User:
        user = self.users.get(name)
        if user is None:
            raise NotFound(f"there is no user {name}", fix="mainstem user ls")
        return user

    def _keep(self, user: User) -> Written:
        self._store.check_room()
        self.users[user.name] = user
        self._changed()
        return self._store.put_item(ItemKind.USER, "", user.name, user.to_document())

    def _changed(self) -> None:
        self.version += 1
        self._decisions.clear()
        self._coverages.clear()
        self._verified.clear()
        for listener in self.listeners:
            listener()


def _hashed(password: str | Hashed) -> Hashed:
    if not password:
        raise InvalidArgument("a password must have at least one character")
    return make_credentials(password.encode()) if isinstance(password, str) else password


def _levels_of(rule: Rule, name: str) -> list[bytes]:
    return filter_levels(rule.filter.replace("%u", name).encode())


def _user_of(item: Item) -> User:
    body = item.body
    rules = [
        Rule(rule["allow"], frozenset(Action(action) for action in rule["actions"]), rule["filter"])
        for rule in body["rules"]
    ]
    return User(item.name, body["user_namespace"], body["admin"], body["credentials"], rules)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a listener on that host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

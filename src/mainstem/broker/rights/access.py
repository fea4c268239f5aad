"""Who may do what: one list of users and rules on canonical topics, for every protocol and the HTTP API.

Rules of this file:

- Until a user exists every login is accepted where the listener allows it (loopback, or the operator said so), and may
  do everything. From the first user on, or once tokens or certificates tell who somebody is, nobody gets in without.
- Who somebody is tells `identity/`. A token may bring roles and rules; they count beside those of the user it names.
- A user may do what a rule (see `rules.py`) allows and none denies: deny wins, no rule is no. An admin may do everything.
  The rules of its roles are a user's too, and those of the role `*` are everybody's.
- A filter may be subscribed to if one allow rule covers all of it. It may overlap denied topics: each delivery is
  checked again.
- A user belongs to one or more namespaces that exist: where one does not, no user is added to it and nobody of it gets
  in, so that nobody ever lands in somebody else's. (An admin gets in by HTTP, which asks for the namespace call by call.)
- User names are single topic levels without wildcards.
- Rules may be made for a name that no user has (Kafka's tools do it). They are kept by name and namespace: who comes there
  by a token of that name has them, and they are the user's own once one of that name belongs to that namespace. Nobody
  else has anything of them, and removing a user removes all that is kept for its name.
- A queue is ruled as the queue it is and, as ever, by the topic of its name; an exchange likewise. Either may allow, either
  may deny.
- Decisions are cached until any rule changes; `version` tells, and `listeners` are called: sessions check again, and
  who came in by a login that no longer holds (`holds`) has to leave.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Callable, Container, Iterable
from dataclasses import replace

from mainstem.broker.identity.nkeys import check_nkey
from mainstem.broker.identity.passwords import make_credentials
from mainstem.broker.namespaces.quotas import Limits
from mainstem.broker.rights.decisions import EVERYBODY, Decisions
from mainstem.broker.rights.followed_users import FollowedUsers, UserStore
from mainstem.broker.rights.people import Hashed, User
from mainstem.broker.rights.people import Principal as Principal
from mainstem.broker.rights.rules import PATTERN
from mainstem.broker.rights.rules import Action as Action
from mainstem.broker.rights.rules import Kind as Kind
from mainstem.broker.rights.rules import Rule as Rule
from mainstem.metadata.rows import Item, ItemKind
from mainstem.metadata.store import Written, done
from mainstem.model.clock import Clock, SystemClock
from mainstem.model.errors import (
    AlreadyExists,
    InvalidArgument,
    InvalidName,
    NotAuthorized,
    NotFound,
    Overloaded,
    QuotaExceeded,
)
from mainstem.model.plain_text import hidden_character

ROLES_MAX = 1_000
NAMESPACES_MAX = 100  # of a user
RULES_MAX = 1_000  # of a user, a role, a name that no user has
KEPT_RULES_MAX = 10_000  # of all names that no user has
USER_NAME = re.compile(r"[^\s/+#*>%:\x00-\x1f\x7f]{1,128}")


class Access(Decisions):
    def __init__(
        self,
        store: UserStore,
        items: Iterable[Item] = (),
        *,
        clock: Clock | None = None,
        namespaces: Container[str] = ("/",),
    ) -> None:
        self._store = store
        self._namespaces = namespaces  # the broker's own, as they come and go
        self._clock = clock or SystemClock()
        super().__init__()
        self._load(items)
        self.version = 0
        self.listeners: list[Callable[[], None]] = []
        self.known_elsewhere = False  # whether tokens or certificates tell who somebody is
        self._nkeys: tuple[int, dict[str, User]] = (-1, {})  # version, and users by their nkey

    def _load(self, items: Iterable[Item]) -> None:
        items = list(items)
        users = {item.name: _user_of(item) for item in items if item.kind == ItemKind.USER}
        self.users = {name: self._same(user) for name, user in users.items()}
        self.roles = {
            item.name: [Rule.of_document(one) for one in item.body["rules"]]
            for item in items
            if item.kind == ItemKind.ROLE
        }
        self.kept = {
            (item.body["user_namespace"], item.body["user"]): [Rule.of_document(one) for one in item.body["rules"]]
            for item in items
            if item.kind == ItemKind.ACL
        }

    def _same(self, user: User) -> User:
        """A password that did not change is the same object, so that who was verified by it stays so."""
        known = self.users.get(user.name)
        if known is not None and known.credentials == user.credentials:
            user.credentials = known.credentials
        return user

    @property
    def follows(self) -> bool:
        """Whether another cell keeps users and roles."""
        return isinstance(self._store, FollowedUsers)

    def follow(self, items: Iterable[Item]) -> None:
        """Users and roles as another cell has them now."""
        self._load(items)
        self.changed()

    @property
    def open(self) -> bool:
        """No user exists, here or elsewhere: every login is accepted where the listener allows it."""
        return not self.users and not self.known_elsewhere

    # -- who is let in, and stays; `identity/login.py` asks

    def principal(self, user: User, namespace: str = "") -> Principal:
        """In the namespace it chose, or its first. NotAuthorized where that does not exist, or is not the user's."""
        chosen = namespace or user.namespace
        if chosen not in user.namespaces and not user.admin:
            raise NotAuthorized(f"user {user.name} does not belong to namespace {chosen!r}")
        if not self.has_namespace(chosen) and not (user.admin and not namespace):
            raise NotAuthorized(
                f"user {user.name} belongs to namespace {chosen!r}, which does not exist",
                fix=f"mainstem namespace add {chosen}",
            )
        return Principal(user.name, chosen, user.admin)

    def has_namespace(self, name: str) -> bool:
        return name in self._namespaces

    def within(self, principal: Principal, namespace: str) -> Principal:
        """The same in another namespace, where it belongs to that too; else as it is."""
        if namespace in ("", principal.namespace) or not self.has_namespace(namespace):
            return principal
        user = self.users.get(principal.name)
        named = user.namespaces if user is not None else principal.namespaces
        return replace(principal, namespace=namespace) if namespace in named else principal

    def stranded(self) -> list[User]:
        """Users whose namespace does not exist."""
        return [user for user in self.users.values() if user.namespace not in self._namespaces]

    def holds(self, principal: Principal) -> bool:
        """Whether who logged in as this would still be let in as this; a changed password alone sends nobody away."""
        if principal.anonymous:
            return self.open
        if principal.expires_s and principal.expires_s <= self._clock.now_ns() // 1_000_000_000:
            return False
        user = self.users.get(principal.name)
        if principal.stranger:
            return user is None and self.has_namespace(principal.namespace)
        if user is None or (user.admin != principal.admin and not principal.by_token):
            return False
        return user.admin or (principal.namespace in user.namespaces and self.has_namespace(principal.namespace))

    def by_nkey(self) -> dict[str, User]:
        if self._nkeys[0] != self.version:
            self._nkeys = self.version, {user.nkey: user for user in self.users.values() if user.nkey}
        return self._nkeys[1]

    # -- changing

    async def hashed(self, password: str) -> Hashed:
        """Of a new password; what `add_user` and `set_password` take instead of it where the loop must not wait."""
        return await asyncio.to_thread(_hashed, password)

    def add_user(
        self,
        name: str,
        password: str | Hashed,
        *,
        admin: bool = False,
        namespace: str = "/",
        also: Iterable[str] = (),
        rules: Iterable[Rule] = (),
        nkey: str = "",
    ) -> Written:
        """With an nkey it may have no password."""
        _check_name(name)
        if name in self.users:
            raise AlreadyExists(f"user {name} exists", fix=f"mainstem user passwd {name}")
        if not self.users and not admin:
            raise InvalidArgument("the first user must be an admin", fix=f"mainstem user add {name} --admin")
        first, *more = dict.fromkeys((namespace, *also))
        for one in (first, *more):
            self._check_namespace(one)
        credentials = _hashed(password) if password or not nkey else {}
        if nkey:
            credentials = {**credentials, "nkey": self._free_nkey(nkey, name)}
        return self._keep(User(name, first, admin, credentials, list(rules), also=more))

    def set_password(self, name: str, password: str | Hashed) -> Written:
        user = self.user(name)
        kept = {"nkey": user.nkey} if user.nkey else {}
        return self._keep(replace(user, credentials={**_hashed(password), **kept}))

    def set_nkey(self, name: str, nkey: str) -> Written:
        """An empty one takes it away."""
        user = self.user(name)
        rest = {key: value for key, value in user.credentials.items() if key != "nkey"}
        return self._keep(replace(user, credentials={**rest, "nkey": self._free_nkey(nkey, name)} if nkey else rest))

    def _free_nkey(self, nkey: str, name: str) -> str:
        other = self.by_nkey().get(check_nkey(nkey))
        if other is not None and other.name != name:
            raise AlreadyExists(f"this nkey is user {other.name}'s", fix=f"mainstem user alter {other.name} --nkey ''")
        return nkey

    def set_quota(self, name: str, quota: Limits) -> Written:
        return self._keep(replace(self.user(name), quota=quota))

    def set_namespace(self, name: str, namespace: str) -> Written:
        """Who is logged in as this user has to leave, and comes back into the other namespace."""
        return self.set_namespaces(name, [namespace])

    def set_namespaces(self, name: str, namespaces: list[str]) -> Written:
        """The first is where it lands if it does not choose; who is in one that is no longer its own has to leave."""
        if not 0 < len(namespaces) <= NAMESPACES_MAX:
            raise InvalidArgument(f"a user belongs to 1 to {NAMESPACES_MAX} namespaces")
        for one in namespaces:
            self._check_namespace(one)
        first, *also = dict.fromkeys(namespaces)
        return self._keep(replace(self.user(name), namespace=first, also=also))

    def renew_credentials(self, name: str, credentials: Hashed) -> Written:
        """The same password in a better form: nobody is told, and who is logged in stays."""
        if self.follows:
            return done()
        kept = {"nkey": self.user(name).nkey} if self.user(name).nkey else {}
        self.users[name] = user = replace(self.user(name), credentials={**credentials, **kept})
        return self._store.put_item(ItemKind.USER, "", name, user.to_document())

    def _check_namespace(self, namespace: str) -> None:
        if namespace not in self._namespaces:
            raise NotFound(f"there is no namespace {namespace!r}", fix=f"mainstem namespace add {namespace}")

    def forget_users(self, names: Iterable[str], namespace: str) -> None:
        """They went with their namespace, which removed them from the metadata; who chose it among others stays."""
        for name in names:
            self.users.pop(name, None)
        for key in [one for one in self.kept if one[0] == namespace]:
            del self.kept[key]
        self.users |= {user.name: user for user in self.left_by(namespace)}
        self.changed()

    def kept_in(self, namespace: str) -> list[str]:
        """The items of the rules that are kept for names in this namespace."""
        return [kept_name(*key) for key in self.kept if key[0] == namespace]

    def left_by(self, namespace: str) -> list[User]:
        """Those who may choose this namespace among others, as they are without it."""
        return [
            replace(user, also=[one for one in user.also if one != namespace])
            for user in self.users.values()
            if namespace in user.also
        ]

    def remove_user(self, name: str) -> Written:
        """With all that is kept for its name; that may also be all there is."""
        kept = [one for one in self.kept if one[1] == name]
        user = self.users.get(name) if kept else self.user(name)
        admins = sum(other.admin for other in self.users.values())
        if user is not None and user.admin and admins == 1 and len(self.users) > 1:
            raise InvalidArgument(f"{name} is the last admin; remove the other users first")
        with self._store.together() as written:
            for key in kept:
                self._store.delete_item(ItemKind.ACL, "", kept_name(*key))
            self._store.delete_item(ItemKind.USER, "", name)
        for key in kept:
            del self.kept[key]
        self.users.pop(name, None)
        self.changed()
        return written

    def add_rule(
        self,
        name: str,
        *,
        allow: bool,
        actions: Iterable[str],
        topic_filter: str,
        kind: str = "topic",
        match: str = PATTERN,
    ) -> Written:
        user = self.user(name)
        rule = Rule.make(allow=allow, actions=actions, pattern=topic_filter, kind=kind, match=match)
        return self._keep(replace(user, rules=_with_rule(user.rules, rule, f"user {name}")))

    def remove_rules(self, name: str, topic_filter: str, kind: str = "topic") -> Written:
        user = self.user(name)
        rules = [rule for rule in user.rules if rule.filter != topic_filter or rule.kind != kind]
        if len(rules) == len(user.rules):
            raise NotFound(f"user {name} has no rule for {kind} {topic_filter}", fix=f"mainstem user describe {name}")
        return self._keep(replace(user, rules=rules))

    def set_rules(self, name: str, rules: list[Rule]) -> Written:
        """All rules of a user."""
        user = self.user(name)
        _check_count(rules, user.rules, f"user {name}")
        return self._keep(replace(user, rules=rules))

    def keep_rules(self, name: str, namespace: str, rules: list[Rule]) -> Written:
        """All rules of a name that no user has in this namespace; none ends it."""
        _check_name(name)
        self._check_namespace(namespace)
        user = self.users.get(name)
        if user is not None and namespace in user.namespaces:
            raise InvalidArgument(f"{name} is a user", fix=f"mainstem user allow {name} ACTION FILTER")
        key, old = (namespace, name), self.kept.get((namespace, name), [])
        _check_count(rules, old, f"user {name}")
        count = sum(len(one) for one in self.kept.values()) - len(old) + len(rules)
        if count > KEPT_RULES_MAX and len(rules) > len(old):
            raise QuotaExceeded(f"{KEPT_RULES_MAX} rules are kept for names that no user has", fix="mainstem user kept")
        if rules:
            self._store.check_room()
            body = {"user": name, "user_namespace": namespace, "rules": [rule.to_document() for rule in rules]}
            written = self._store.put_item(ItemKind.ACL, "", kept_name(*key), body)
            self.kept[key] = rules
        else:
            written = self._store.delete_item(ItemKind.ACL, "", kept_name(*key))
            self.kept.pop(key, None)
        self.changed()
        return written

    def set_roles(self, name: str, roles: Iterable[str]) -> Written:
        wanted = sorted(set(roles) - {EVERYBODY})
        for role in wanted:
            self.role(role)
        return self._keep(replace(self.user(name), roles=wanted))

    def role(self, name: str) -> list[Rule]:
        if name not in self.roles:
            raise NotFound(f"there is no role {name}", fix="mainstem role ls")
        return self.roles[name]

    def put_role(self, name: str, rules: list[Rule]) -> Written:
        """Made, or given other rules. `*` is everybody's."""
        if name != EVERYBODY and not USER_NAME.fullmatch(name):
            raise InvalidName(f"role name {name!r}: 1 to 128 characters without spaces, / + # * > % :")
        _check_count(rules, self.roles.get(name, []), f"role {name}")
        if name not in self.roles and len(self.roles) >= ROLES_MAX:
            raise Overloaded(f"there are {ROLES_MAX} roles already", fix="mainstem role rm NAME")
        self._store.check_room()
        self.roles[name] = rules
        self.changed()
        return self._store.put_item(ItemKind.ROLE, "", name, {"rules": [rule.to_document() for rule in rules]})

    def remove_role(self, name: str) -> Written:
        self.role(name)
        users = [user.name for user in self.users.values() if name in user.roles]
        if users:
            raise InvalidArgument(
                f"role {name} is {users[0]}'s" + (f" and {len(users) - 1} others'" if len(users) > 1 else ""),
                fix=f"mainstem user roles {users[0]}",
            )
        written = self._store.delete_item(ItemKind.ROLE, "", name)
        del self.roles[name]
        self.changed()
        return written

    def user(self, name: str) -> User:
        user = self.users.get(name)
        if user is None:
            raise NotFound(f"there is no user {name}", fix="mainstem user ls")
        return user

    def _keep(self, user: User) -> Written:
        """What was kept for its name in its namespaces is its own from then on."""
        self._store.check_room()
        waiting = [key for key in ((one, user.name) for one in user.namespaces) if key in self.kept]
        for key in waiting:
            user = replace(user, rules=[*user.rules, *(one for one in self.kept[key] if one not in user.rules)])
        with self._store.together() as written:
            for key in waiting:
                self._store.delete_item(ItemKind.ACL, "", kept_name(*key))
            self._store.put_item(ItemKind.USER, "", user.name, user.to_document())
        for key in waiting:
            del self.kept[key]
        self.users[user.name] = user
        self.changed()
        return written

    def changed(self) -> None:
        """Whatever was decided is decided again, and who no longer holds has to leave."""
        self.version += 1
        self._decisions.clear()
        self._coverages.clear()
        for listener in self.listeners:
            listener()


def kept_name(namespace: str, user: str) -> str:
    """Of the item: no user's name has a colon."""
    return f"{namespace}:{user}"


def _check_name(name: str) -> None:
    if not USER_NAME.fullmatch(name) or hidden_character(name):
        raise InvalidName(f"user name {name!r}: 1 to 128 characters without spaces, / + # * > % : or hidden ones")


def _check_count(rules: list[Rule], old: list[Rule], whose: str) -> None:
    """Fewer than there were are always taken."""
    if len(rules) > RULES_MAX and len(rules) > len(old):
        raise QuotaExceeded(f"{whose} has {RULES_MAX} rules", fix="one rule with a wildcard may say as much")


def _hashed(password: str | Hashed) -> Hashed:
    if password == "":
        raise InvalidArgument("a password must have at least one character")
    return make_credentials(password.encode()) if isinstance(password, str) else password


def _user_of(item: Item) -> User:
    body = item.body
    rules = [Rule.of_document(rule) for rule in body["rules"]]
    namespace, admin, credentials = body["user_namespace"], body["admin"], body["credentials"]
    quota = Limits.of_document(body.get("quota") or {})
    return User(item.name, namespace, admin, credentials, rules, body.get("roles", []), quota, body.get("also", []))


def _with_rule(rules: list[Rule], rule: Rule, whose: str) -> list[Rule]:
    kept = [*(one for one in rules if one != rule), rule]
    if len(kept) > RULES_MAX:
        raise Overloaded(f"{whose} has {RULES_MAX} rules already", fix="one rule with a wildcard may say as much")
    return kept


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a listener on that host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

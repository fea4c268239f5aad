"""Consumer groups and transactional ids belong to the user who used them first; others need a rule that says so.

A rule decides where one speaks of the object (deny wins). Otherwise its owner may do everything with it and nobody else
anything; one that does not exist yet is anybody's to make. What an earlier version left without an owner belongs to the next
user who uses it. An owner counts as long as the object exists: a name that is free again is anybody's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mainstem.broker.rights.access import Access, Principal
from mainstem.broker.rights.rules import Action, Kind
from mainstem.metadata.rows import Item, ItemKind
from mainstem.metadata.store import MetadataStore
from mainstem.model.errors import Overloaded

OWNERS_MAX = 250_000  # more than there may be groups and transactional ids
USES = (Action.CONSUME, Action.PUBLISH, Action.CREATE)


class Owners:
    def __init__(self, store: MetadataStore, access: Access, items: Iterable[Item] = ()) -> None:
        self._store = store
        self._access = access
        self._users: dict[tuple[str, Kind, str], str] = {}  # namespace, kind, name → user
        for item in items:
            if item.kind == ItemKind.OWNER:
                kind, _, name = item.name.partition(":")
                self._users[item.namespace, Kind(kind), name] = item.body["user"]

    def may(self, principal: Principal, action: Action, kind: Kind, namespace: str, name: str, *, exists: bool) -> bool:
        said = self._access.judges(principal, action, kind, name)
        if said is not None:
            return said
        if not exists:
            return True
        owner = self._users.get((namespace, kind, name))
        return action in USES if owner is None else owner == principal.name

    def use(self, principal: Principal, action: Action, kind: Kind, namespace: str, name: str, *, exists: bool) -> bool:
        """Whether it may be used so; it is the user's from then on, if it was nobody's."""
        if not self.may(principal, action, kind, namespace, name, exists=exists):
            return False
        key = (namespace, kind, name)
        if principal.anonymous or (exists and key in self._users) or self._users.get(key) == principal.name:
            return True
        if len(self._users) >= OWNERS_MAX:
            raise Overloaded(f"{OWNERS_MAX} groups and transactional ids have owners already")
        self._users[key] = principal.name
        self._store.put_item(ItemKind.OWNER, namespace, f"{kind}:{name}", {"user": principal.name})
        return True

    def owner(self, kind: Kind, namespace: str, name: str) -> str:
        return self._users.get((namespace, kind, name), "")

    def forget(self, kind: Kind, namespace: str, name: str) -> None:
        if self._users.pop((namespace, kind, name), None) is not None:
            self._store.delete_item(ItemKind.OWNER, namespace, f"{kind}:{name}")

    def forget_namespace(self, name: str) -> Iterator[None]:
        """It is removed, and its items with it."""
        for key in [one for one in self._users if one[0] == name]:
            del self._users[key]
            yield

    def trim(self, kind: Kind, exists: Callable[[str, str], bool]) -> None:
        """Forget those whose object is gone."""
        for namespace, of, name in [key for key in self._users if key[1] is kind and not exists(key[0], key[2])]:
            self.forget(of, namespace, name)

"""Users and roles that another cell keeps: read from there, followed as they change, and never changed here."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NoReturn, Protocol

from mainstem.metadata.rows import Document, Item
from mainstem.metadata.store import Written
from mainstem.model.errors import InvalidArgument


class UserStore(Protocol):
    """Where `Access` keeps users and roles: a metadata store, or a source that refuses changes."""

    def check_room(self) -> None:
        """Raises where nothing can be changed now."""

    def put_item(self, kind: str, namespace: str, name: str, body: Document) -> Written: ...

    def delete_item(self, kind: str, namespace: str, name: str) -> Written: ...

    def together(self) -> AbstractContextManager[Written]:
        """What is changed inside becomes durable all or none."""


class UserSource(UserStore, Protocol):
    def load(self) -> list[Item]:
        """Users and roles as they are; waits for whoever has them."""


class FollowedUsers:
    """The base of a source: what would change them is refused."""

    def check_room(self) -> NoReturn:
        raise InvalidArgument(
            "users and roles are kept by cell main, and are not changed by a client of another cell",
            fix="mainstem user ... and mainstem role ..., by HTTP",
        )

    def put_item(self, kind: str, namespace: str, name: str, body: Document) -> NoReturn:
        self.check_room()

    def delete_item(self, kind: str, namespace: str, name: str) -> NoReturn:
        self.check_room()

    def together(self) -> NoReturn:
        self.check_room()

"""Rules of names that no user has: kept by name and namespace, those of who comes by a token, a user's once it is added."""

from __future__ import annotations

import pytest

from mainstem.broker.rights import access as rights
from mainstem.broker.rights.access import Access, Action, Principal, Rule
from mainstem.metadata.sqlite import SqliteStore
from mainstem.model.errors import InvalidArgument, InvalidName, NotFound, QuotaExceeded

READ = Rule.make(allow=True, actions=["consume"], pattern="s/#")
WRITE = Rule.make(allow=True, actions=["publish"], pattern="s/#")
NAMESPACES = ("/", "shop", "lab")


pytestmark = pytest.mark.usefixtures("quick_hashing")


@pytest.fixture
def access(store: SqliteStore) -> Access:
    access = Access(store, namespaces=NAMESPACES)
    access.add_user("root", "secret", admin=True)
    return access


def again(store: SqliteStore) -> Access:
    """As the next start finds it."""
    return Access(store, store.load().items, namespaces=NAMESPACES)


def token(name: str, namespace: str = "/") -> Principal:
    """Who is known by a token alone."""
    return Principal(name, namespace, by_token=True, stranger=True, namespaces=NAMESPACES)


def test_they_are_the_users_once_it_is_added_and_kept_no_more(store: SqliteStore, access: Access) -> None:
    access.keep_rules("bob", "/", [READ])
    assert again(store).kept == {("/", "bob"): [READ]}
    access.add_user("bob", "pw", rules=[WRITE])
    for one in (access, again(store)):
        assert one.user("bob").rules == [WRITE, READ]
        assert one.kept == {}
        assert one.allows(one.principal(one.user("bob")), Action.CONSUME, b"s/1")


def test_those_of_another_namespace_wait_until_the_user_belongs_to_it(store: SqliteStore, access: Access) -> None:
    access.keep_rules("bob", "shop", [READ])
    access.add_user("bob", "pw", namespace="lab")
    assert access.user("bob").rules == []
    assert not access.allows(access.principal(access.user("bob")), Action.CONSUME, b"s/1")
    access.set_namespaces("bob", ["lab", "shop"])
    assert access.user("bob").rules == [READ]
    assert again(store).kept == {}


def test_nobody_has_them_but_who_comes_by_a_token_of_that_name_into_that_namespace(access: Access) -> None:
    access.keep_rules("bob", "shop", [READ, Rule.make(allow=False, actions=["consume"], pattern="s/secret")])
    assert access.allows(token("bob", "shop"), Action.CONSUME, b"s/1")
    assert not access.allows(token("bob", "shop"), Action.CONSUME, b"s/secret")
    assert not access.allows(token("bob", "lab"), Action.CONSUME, b"s/1")
    assert not access.allows(token("eve", "shop"), Action.CONSUME, b"s/1")
    assert not access.allows(Principal("bob", "shop"), Action.CONSUME, b"s/1"), "a removed user's connection"


def test_who_had_been_decided_about_is_decided_about_again(access: Access) -> None:
    assert not access.allows(token("bob"), Action.CONSUME, b"s/1")
    access.keep_rules("bob", "/", [READ])
    assert access.allows(token("bob"), Action.CONSUME, b"s/1")
    access.keep_rules("bob", "/", [])
    assert not access.allows(token("bob"), Action.CONSUME, b"s/1")
    assert access.kept == {}


def test_whoever_removes_a_name_removes_all_that_is_kept_for_it(store: SqliteStore, access: Access) -> None:
    access.add_user("bob", "pw", namespace="lab")
    access.keep_rules("bob", "shop", [READ])
    access.remove_user("bob")
    assert again(store).kept == access.kept == {}
    access.keep_rules("eve", "/", [READ])
    access.remove_user("eve")
    assert again(store).kept == access.kept == {}
    with pytest.raises(NotFound):
        access.remove_user("eve")


def test_they_go_with_their_namespace(access: Access) -> None:
    access.keep_rules("bob", "shop", [READ])
    access.keep_rules("bob", "/", [WRITE])
    access.forget_users([], "shop")
    assert access.kept == {("/", "bob"): [WRITE]}


@pytest.mark.parametrize("name", ["", "*", "a b", "a/b", "CN=bob, O=acme", "a\u202eb"])
def test_a_name_that_nobody_can_have_is_refused(access: Access, name: str) -> None:
    with pytest.raises(InvalidName):
        access.keep_rules(name, "/", [READ])


def test_a_user_of_that_namespace_has_rules_of_its_own(access: Access) -> None:
    with pytest.raises(InvalidArgument, match="root"):
        access.keep_rules("root", "/", [READ])


def test_they_have_a_limit(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "KEPT_RULES_MAX", 3)
    access.keep_rules("bob", "/", [READ, WRITE])
    with pytest.raises(QuotaExceeded, match="3 rules"):
        access.keep_rules("eve", "/", [READ, WRITE])
    access.keep_rules("bob", "/", [READ])
    access.keep_rules("eve", "/", [READ, WRITE])
    monkeypatch.setattr(rights, "RULES_MAX", 2)
    access.add_user("ann", "pw")
    with pytest.raises(QuotaExceeded, match="2 rules"):
        access.set_rules("ann", [READ] * 3)
    with pytest.raises(QuotaExceeded, match="2 rules"):
        access.put_role("*", [READ] * 3)

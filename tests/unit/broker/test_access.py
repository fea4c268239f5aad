"""One ACL for all protocols: deny wins, no rule is no, a filter needs a rule that covers it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.identity.login import Identity, Shown
from mainstem.broker.identity.passwords import SCRAM_HASHES, make_credentials, scram_verifier, verify_password
from mainstem.broker.rights.access import Access, Action, Principal
from mainstem.metadata.sqlite import SqliteStore
from mainstem.model.errors import InvalidArgument, InvalidName
from mainstem.model.topic_filter import covers, filter_levels, matches

pytestmark = pytest.mark.usefixtures("quick_hashing")


@pytest.fixture
def access(store: SqliteStore) -> Access:
    access = Access(store)
    access.add_user("root", "secret", admin=True)
    access.add_user("ann", "pw")
    return access


def ann(access: Access) -> Principal:
    return access.principal(access.user("ann"))


def test_the_first_user_must_be_an_admin(store: SqliteStore) -> None:
    with pytest.raises(InvalidArgument):
        Access(store).add_user("ann", "pw")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "#", "+", "x\n", "%u", "a:b", "x\x85", "a\u202eb", "a\u2066b"])
def test_names_that_could_play_tricks_are_refused(access: Access, name: str) -> None:
    with pytest.raises(InvalidName):
        access.add_user(name, "pw")


def test_no_rule_is_no_and_deny_wins(access: Access) -> None:
    assert not access.allows(ann(access), Action.PUBLISH, b"s/1")
    access.add_rule("ann", allow=True, actions=["publish", "consume"], topic_filter="s/#")
    assert access.allows(ann(access), Action.PUBLISH, b"s/1")
    assert not access.allows(ann(access), Action.DELETE, b"s/1")
    access.add_rule("ann", allow=False, actions=["publish"], topic_filter="s/secret")
    assert not access.allows(ann(access), Action.PUBLISH, b"s/secret")
    assert access.allows(ann(access), Action.CONSUME, b"s/secret")
    access.remove_rules("ann", "s/#")
    assert not access.allows(ann(access), Action.PUBLISH, b"s/1")


def test_a_filter_must_be_covered_and_may_overlap_a_denied_topic(access: Access) -> None:
    access.add_rule("ann", allow=True, actions=["consume"], topic_filter="s/+/t")
    access.add_rule("ann", allow=False, actions=["consume"], topic_filter="s/secret/t")
    me = ann(access)
    assert access.allows_filter(me, Action.CONSUME, b"s/+/t")
    assert access.allows_filter(me, Action.CONSUME, b"s/1/t")
    assert not access.allows_filter(me, Action.CONSUME, b"s/#")
    assert not access.allows_filter(me, Action.CONSUME, b"#")
    assert not access.allows_filter(me, Action.CONSUME, b"s/secret/t")
    assert not access.allows(me, Action.CONSUME, b"s/secret/t")


def test_wildcard_rules_do_not_reach_internal_names(access: Access) -> None:
    access.add_rule("ann", allow=True, actions=["consume"], topic_filter="#")
    assert not access.allows(ann(access), Action.CONSUME, b"$SYS/broker/uptime")
    assert not access.allows_filter(ann(access), Action.CONSUME, b"$SYS/#")


def test_a_rule_can_name_the_user(access: Access) -> None:
    access.add_rule("ann", allow=True, actions=["publish"], topic_filter="home/%u/#")
    assert access.allows(ann(access), Action.PUBLISH, b"home/ann/x")
    assert not access.allows(ann(access), Action.PUBLISH, b"home/bob/x")


def test_a_topic_that_looks_like_a_filter_is_taken_literally(access: Access) -> None:
    access.add_rule("ann", allow=True, actions=["publish"], topic_filter="a/%2A")
    assert access.allows(ann(access), Action.PUBLISH, b"a/*")
    assert not access.allows(ann(access), Action.PUBLISH, b"a/b")


def test_users_and_rules_survive(store: SqliteStore, access: Access) -> None:
    access.add_rule("ann", allow=True, actions=["publish"], topic_filter="s/#")
    again = Access(store, store.load().items)
    assert asyncio.run(Identity(again).login(Shown("ann", b"pw"))).name == "ann"
    assert again.allows(again.principal(again.user("ann")), Action.PUBLISH, b"s/1")


def test_changes_are_told(access: Access) -> None:
    told: list[int] = []
    access.listeners.append(lambda: told.append(access.version))
    access.add_rule("ann", allow=True, actions=["publish"], topic_filter="s/#")
    assert told == [access.version]


def test_passwords_are_never_kept() -> None:
    kept = make_credentials(b"a password")
    assert "a password" not in str(kept)
    assert verify_password(kept, b"a password")
    assert not verify_password(kept, b"another")
    assert not verify_password(None, b"a password")


@pytest.mark.parametrize("mechanism", list(SCRAM_HASHES))
def test_a_scram_proof_of_the_password_verifies(mechanism: str) -> None:
    algorithm = SCRAM_HASHES[mechanism]
    verifier = scram_verifier(make_credentials(b"pw"), mechanism, "ann")
    salted = hashlib.pbkdf2_hmac(algorithm, b"pw", verifier.salt, verifier.iterations)
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    assert hashlib.new(algorithm, client_key).digest() == verifier.stored_key


def test_an_unknown_user_has_a_steady_salt() -> None:
    first = scram_verifier(None, "SCRAM-SHA-256", "nobody")
    again = scram_verifier(None, "SCRAM-SHA-256", "nobody")
    assert first.salt == again.salt
    assert scram_verifier(None, "SCRAM-SHA-256", "someone").salt != first.salt


levels = st.sampled_from([b"a", b"b", b"", b"$x", b"+", b"#"])
filters = st.lists(levels, min_size=1, max_size=5).map(b"/".join).filter(bool)
topics = st.lists(st.sampled_from([b"a", b"b", b"", b"$x", b"c"]), min_size=1, max_size=5).map(b"/".join).filter(bool)


@given(filters, filters, topics)
def test_what_a_covering_filter_covers_it_matches(outer: bytes, inner: bytes, topic: bytes) -> None:
    if covers(filter_levels(outer), filter_levels(inner)) and matches(inner, topic):
        assert matches(outer, topic)


@given(filters, topics)
def test_covering_a_topic_is_matching_it(outer: bytes, topic: bytes) -> None:
    assert covers(filter_levels(outer), filter_levels(topic)) == matches(outer, topic)

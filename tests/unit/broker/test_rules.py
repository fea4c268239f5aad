"""Rules against a model of ten lines: deny wins, no rule is no, placeholders stand for one name and never for a pattern."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.broker.rights.access import Access, Action, Kind, Principal, Rule
from mainstem.broker.rights.rules import LITERAL, PATTERN, PREFIX, Names
from mainstem.metadata.sqlite import SqliteStore
from mainstem.model.errors import InvalidArgument
from mainstem.model.topic_filter import filter_levels, literal_filter, matches

LEVELS = st.sampled_from(["a", "b", "c"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=3).map("/".join)
FILTERS = st.lists(st.sampled_from(["a", "b", "+", "#"]), min_size=1, max_size=3).map("/".join)
RULES = st.builds(
    lambda allow, match, pattern, topic: Rule.make(
        allow=allow, actions=["consume"], pattern=pattern if match == PATTERN else topic, match=match
    ),
    st.booleans(),
    st.sampled_from([PATTERN, LITERAL, PREFIX]),
    FILTERS,
    TOPICS,
)


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    store = SqliteStore(tmp_path_factory.mktemp("rules") / "metadata.sqlite")
    made = Access(store)
    made.add_user("root", "pw", admin=True).result()
    made.add_user("ann", "pw").result()
    yield made
    store.close()


ANN = Principal("ann")


def means(rule: Rule, topic: str) -> bool:
    if rule.match == PREFIX:
        return topic.startswith(rule.filter)
    return topic == rule.filter if rule.match == LITERAL else matches(rule.filter.encode(), topic.encode())


@settings(max_examples=150, deadline=None)
@given(own=st.lists(RULES, max_size=4), of_role=st.lists(RULES, max_size=3), topic=TOPICS, asked=FILTERS)
def test_decisions_are_those_of_the_model(
    access: Access, own: list[Rule], of_role: list[Rule], topic: str, asked: str
) -> None:
    access.put_role("*", of_role)
    access.set_rules("ann", own)
    rules = own + of_role
    denied = any(not rule.allow and means(rule, topic) for rule in rules)
    allowed = any(rule.allow and means(rule, topic) for rule in rules) and not denied
    assert access.allows(ANN, Action.CONSUME, topic.encode()) == allowed
    assert access.denies(ANN, Action.CONSUME, topic.encode()) == denied
    assert access.explain(ANN, Action.CONSUME, literal_filter(topic.encode()))[0] == allowed
    if access.allows_all(ANN, Action.CONSUME, asked.encode()) and matches(asked.encode(), topic.encode()):
        assert allowed
    if denied and matches(asked.encode(), topic.encode()):
        assert access.denies_some(ANN, Action.CONSUME, asked.encode())
    hidden = any(matches(one, topic.encode()) for one in access.denied_filters(ANN, Action.CONSUME))
    assert hidden or not denied


@pytest.mark.parametrize("client", ["", "a/b", "#", "+", "x*", "%u"])
def test_a_client_id_that_reads_as_a_pattern_allows_nothing_and_is_denied_whatever_it_could_mean(client: str) -> None:
    names = Names("ann", client)
    levels = filter_levels(b"in/dev-1/x")
    assert not Rule.make(allow=True, actions=["publish"], pattern="in/%c/x").covers_topics(levels, names)
    assert Rule.make(allow=False, actions=["publish"], pattern="in/%c/x").covers_topics(levels, names)


def test_placeholders_are_user_client_and_namespace() -> None:
    rule = Rule.make(allow=True, actions=["publish"], pattern="%n/%u/%c")
    assert rule.covers_topics(filter_levels(b"t1/ann/dev-1"), Names("ann", "dev-1", "t1"))
    assert not rule.covers_topics(filter_levels(b"t1/ben/dev-1"), Names("ann", "dev-1", "t1"))


def test_names_of_other_kinds_match_whole_or_by_their_beginning() -> None:
    def rule(pattern: str, match: str = PATTERN) -> Rule:
        return Rule.make(allow=True, actions=["consume"], pattern=pattern, kind="group", match=match)

    ann = Names("ann")
    assert rule("%u-*").covers_name("ann-1", ann) and not rule("%u-*").covers_name("ben-1", ann)
    assert rule("x*", LITERAL).covers_name("x*", ann) and not rule("x*", LITERAL).covers_name("xy", ann)
    assert rule("x", PREFIX).covers_name("xy", ann) and not rule("x").covers_name("xy", ann)


def test_rules_of_one_kind_say_nothing_of_another(access: Access) -> None:
    access.put_role("*", [])
    access.set_rules("ann", [Rule.make(allow=True, actions=["consume"], pattern="*", kind="queue")])
    assert access.judges(ANN, Action.CONSUME, Kind.QUEUE, "q") is True
    assert access.judges(ANN, Action.CONSUME, Kind.GROUP, "q") is None
    assert not access.allows(ANN, Action.CONSUME, b"q")
    assert access.allows_named(ANN, Action.CONSUME, Kind.QUEUE, "q", b"q")
    access.add_rule("ann", allow=False, actions=["consume"], topic_filter="q").result()
    assert not access.allows_named(ANN, Action.CONSUME, Kind.QUEUE, "q", b"q")


@pytest.mark.parametrize("wrong", [{"actions": ["fly"]}, {"actions": []}, {"kind": "moon"}, {"match": "maybe"}])
def test_what_is_no_rule_is_refused(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {"allow": True, "actions": ["consume"], "pattern": "a"}
    with pytest.raises(InvalidArgument):
        Rule.make(**(right | wrong))  # type: ignore[arg-type]


def test_alter_is_another_word_for_configure() -> None:
    assert Rule.make(allow=True, actions=["alter"], pattern="a").actions == {Action.CONFIGURE}
    assert Rule.of_document(Rule.make(allow=True, actions=["alter"], pattern="a").to_document()).kind is Kind.TOPIC

"""A topic has one NATS subject and a subject one topic: nothing is merged, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.model.errors import InvalidName
from mainstem.model.topic import filter_of_nats, nats_subject, topic_of_nats
from mainstem.model.topic_filter import matches

SPELLINGS = {
    b"sensors/dev_1/temp": b"sensors.dev_1.temp",
    b"/a//b": b"%.a.%.b",
    b"10.0.0.1/x": b"10%2E0%2E0%2E1.x",
    b"a b/c": b"a%20b.c",
    b"a/*/>": b"a.%2A.%3E",
    b"a*b/>c": b"a*b.>c",
    b"%": b"%25",
    b"100%": b"100%",
    b"a%20b": b"a%2520b",
    b"a%2Fb/c": b"a/b.c",
    "größe/é".encode(): "größe.é".encode(),
}
LEVELS = st.text(st.sampled_from(list("aé.%*>+ 0235AEF\t")), max_size=5).map(str.encode)
TOKENS = st.text(st.sampled_from(list("aé%*>+/#0235AEF")), min_size=1, max_size=5).map(str.encode)


@pytest.mark.parametrize("topic", SPELLINGS)
def test_known_spellings_and_back(topic: bytes) -> None:
    assert nats_subject(topic) == SPELLINGS[topic]
    assert topic_of_nats(SPELLINGS[topic]) == topic


@given(st.lists(LEVELS, min_size=1, max_size=4))
def test_every_topic_comes_back(levels: list[bytes]) -> None:
    topic = b"/".join(level.replace(b"+", b"%2B") for level in levels)
    assert topic_of_nats(nats_subject(topic)) == topic


@given(st.lists(TOKENS.filter(lambda token: token not in (b"*", b">")), min_size=1, max_size=4))
def test_every_subject_comes_back(tokens: list[bytes]) -> None:
    subject = b".".join(tokens)
    assert nats_subject(topic_of_nats(subject)) == subject


@pytest.mark.parametrize("subject", [b"", b".", b"a..b", b"a.", b".a"])
def test_an_empty_token_is_no_subject(subject: bytes) -> None:
    with pytest.raises(InvalidName):
        topic_of_nats(subject)


def test_wildcards_mean_what_they_mean_in_nats() -> None:
    more, one = filter_of_nats(b"a.>"), filter_of_nats(b"a.*")
    assert [matches(more, topic) for topic in (b"a", b"a/b", b"a/b/c")] == [False, True, True]
    assert [matches(one, topic) for topic in (b"a", b"a/b", b"a/b/c")] == [False, True, False]
    literal = filter_of_nats(b"a.%2A")
    assert matches(literal, b"a/*") and not matches(literal, b"a/b")
    with pytest.raises(InvalidName):
        filter_of_nats(b">.a")

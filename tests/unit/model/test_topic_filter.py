"""Which topics a filter means, and what may be a topic or a filter."""

from __future__ import annotations

from itertools import product

import pytest

from mainstem.model.errors import InvalidName
from mainstem.model.topic_filter import (
    check_filter,
    check_topic,
    filter_levels,
    is_pattern,
    literal_filter,
    matches,
    overlap,
)
from mainstem.model.topic_tries import FilterTrie


@pytest.mark.parametrize(
    ("topic_filter", "topic", "meant"),
    [
        (b"a/b", b"a/b", True),
        (b"a/b", b"a/c", False),
        (b"a/b", b"a/b/c", False),
        (b"a/+/c", b"a/b/c", True),
        (b"a/+/c", b"a//c", True),
        (b"a/*/c", b"a/b/c", True),
        (b"+", b"", True),
        (b"+", b"a/b", False),
        (b"a/+", b"a", False),
        (b"a/#", b"a", True),
        (b"a/#", b"a/b/c", True),
        (b"a/#", b"ab", False),
        (b"#", b"a/b", True),
        (b"#", b"", True),
        (b"a/#/z", b"a/z", True),
        (b"a/#/z", b"a/b/c/z", True),
        (b"a/#/z", b"a/b/c", False),
        (b"#/b/#/d/#", b"a/b/c/d/e", True),
        (b"#/b/#/d", b"a/b/d/c", False),
        (b"#/a/b", b"a/a/b", True),
        (b"#/+/#/+", b"a", False),
        (b"#/+/#/+", b"a/b", True),
        (b"a/>", b"a", False),
        (b"a/>", b"a/b", True),
        (b"a/>", b"a/b/c", True),
        (b">", b"a", True),
        (b"#/>", b"a", True),
        (b"a/>/b", b"a/>/b", True),
        (b"a/>/b", b"a/c/b", False),
        (b"#", b"$SYS/x", False),
        (b"+/x", b"$SYS/x", False),
        (b">", b"$SYS/x", False),
        (b"#/$SYS/x", b"$SYS/x", False),
        (b"#/x", b"$SYS/x", False),
        (b"$SYS/#", b"$SYS/x", True),
        (b"a/+", b"a/$SYS", True),
        (b"a/%2A", b"a/*", True),
        (b"a/%2A", b"a/b", False),
        (b"a/%3E", b"a/>", True),
        (b"a/%252A", b"a/%2A", True),
        (b"a/%2A", b"a/%2A", False),
        (b"a/%2Ax", b"a/%2Ax", True),
    ],
)
def test_a_filter_means_a_topic_or_not(topic_filter: bytes, topic: bytes, meant: bool) -> None:
    assert matches(topic_filter, topic) is meant


def test_runs_of_wildcards_do_not_multiply_the_work() -> None:
    assert not matches(b"#/" * 200 + b"z", b"a/" * 200 + b"y")
    assert not matches(b"#/+/" * 100 + b"z", b"a/" * 200 + b"y")


def test_filters_that_mean_the_same_have_one_form() -> None:
    assert filter_levels(b"a/#/#/+/#") == filter_levels(b"a/>") == filter_levels(b"a/*/#")


@pytest.mark.parametrize("topic", [b"a/*", b">", b"a/%2A", b"%25252A/b", b"a/%zz", b"plain", b"$SYS/*/%3E"])
def test_a_literal_filter_means_exactly_its_topic(topic: bytes) -> None:
    assert matches(literal_filter(topic), topic)
    assert not is_pattern(literal_filter(topic))
    assert not matches(literal_filter(topic), b"other")


@pytest.mark.parametrize(
    "topic", [b"", b"a/+/b", b"a#", b"a\0b", b"\xff", b"\xed\xa0\x80", b"a" * 1025, b"/" * 256], ids=repr
)
def test_what_is_no_topic_is_refused(topic: bytes) -> None:
    with pytest.raises(InvalidName):
        check_topic(topic)


@pytest.mark.parametrize("topic", [b"a", b"/", b"//", b"a b/c.d", b"\xc3\xa9", b"*", b">", b"x" * 1024, b"/" * 255])
def test_what_is_a_topic_is_accepted_and_is_meant_by_all_filters_of_everything(topic: bytes) -> None:
    check_topic(topic)
    assert matches(b"#", topic)


@pytest.mark.parametrize("topic_filter", [b"", b"a+/b", b"a/b#", b"##", b"a/>/b", b"\0", b"\xff", b"#/" * 256])
def test_what_is_no_filter_is_refused(topic_filter: bytes) -> None:
    with pytest.raises(InvalidName):
        check_filter(topic_filter)


@pytest.mark.parametrize("topic_filter", [b"#", b"+", b"*", b">", b"a/#/b/#", b"a*/b>", b"/+/", b"$share"])
def test_what_is_a_filter_is_accepted_and_can_be_asked(topic_filter: bytes) -> None:
    check_filter(topic_filter)
    trie = FilterTrie()
    trie.add(topic_filter, "it")
    assert trie.match(b"a/b") == (["it"] if matches(topic_filter, b"a/b") else [])


def test_limits_are_arguments_up_to_what_mqtt_can_carry() -> None:
    check_topic(b"a" * 65535, bytes_max=100_000)
    with pytest.raises(InvalidName, match="limit 65535"):
        check_topic(b"a" * 65536, bytes_max=100_000)
    check_topic(b"a/" * 1999 + b"a", bytes_max=4000, levels_max=2000)


def test_two_filters_overlap_where_one_topic_is_meant_by_both() -> None:
    """Every filter of up to three levels against every other, and every topic they could tell apart."""
    names = [b"a", b"b", b"$a", b""]
    topics = [b"/".join(levels) for size in range(1, 6) for levels in product(names, repeat=size)]
    wild = (b"a", b"+", b"#")
    shapes = [b"/".join(levels) for size in range(3) for levels in product((*wild, b"$a"), *[wild] * size)]
    meant = {shape: {topic for topic in topics if matches(shape, topic)} for shape in shapes}
    for one, other in product(shapes, repeat=2):
        expected = not meant[one].isdisjoint(meant[other])
        assert overlap(filter_levels(one), filter_levels(other)) == expected, (one, other)

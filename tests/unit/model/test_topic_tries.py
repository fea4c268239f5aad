"""Both tries, compiled and plain, against the naive matcher."""

from __future__ import annotations

import gc
import weakref
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mainstem.model import _topic_tries as compiled
from mainstem.model.errors import CorruptFrame, InvalidName, NotFound, Overloaded
from mainstem.model.topic_dump import DUMP_TOPIC
from mainstem.model.topic_filter import matches
from tests.oracles import topic_tries as plain

IMPLEMENTATIONS = [plain, compiled]

either = pytest.mark.parametrize("tries", IMPLEMENTATIONS, ids=lambda module: module.__name__.rpartition(".")[2])

topics = st.lists(
    st.sampled_from([b"a", b"b", b"", b"$S", b"*", b">", b"%2A", b"longer-than-eight"]), min_size=1, max_size=6
)
filters = st.lists(
    st.sampled_from([b"a", b"b", b"", b"$S", b"+", b"*", b"#", b"#", b">", b"%2A", b"%252A", b"longer-than-eight"]),
    min_size=1,
    max_size=7,
)
topic_names = topics.map(b"/".join)
filter_names = filters.map(b"/".join)


@either
@settings(max_examples=300, deadline=None)
@given(st.lists(filter_names, max_size=30), st.lists(topic_names, min_size=1, max_size=10))
def test_a_filter_trie_finds_what_the_naive_matcher_finds(
    tries: ModuleType, some: list[bytes], names: list[bytes]
) -> None:
    trie = tries.FilterTrie()
    for topic_filter in some:
        trie.add(topic_filter, topic_filter)
    assert len(trie) == len(set(some))
    for topic in names:
        assert sorted(trie.match(topic)) == sorted(f for f in set(some) if matches(f, topic))


@either
@settings(max_examples=300, deadline=None)
@given(st.lists(topic_names, max_size=30), st.lists(filter_names, min_size=1, max_size=10))
def test_a_topic_trie_finds_what_the_naive_matcher_finds(
    tries: ModuleType, names: list[bytes], some: list[bytes]
) -> None:
    trie = tries.TopicTrie()
    for topic in names:
        assert trie.name(trie.number(topic)) == topic
    for topic_filter in some:
        found = trie.match(topic_filter)
        meant = {trie.find(topic) for topic in names if matches(topic_filter, topic)}
        assert sorted(found) == sorted(meant)
        bits = trie.bitmap(topic_filter)
        assert {n for n in range(len(bits) * 8) if bits[n >> 3] >> (n & 7) & 1} == meant


class FilterTrieMachine(RuleBasedStateMachine):
    """Any sequence of additions and removals leaves what a plain set of pairs would."""

    tries: Any = plain

    @initialize()
    def start(self) -> None:
        self.trie = self.tries.FilterTrie()
        self.pairs: set[tuple[bytes, int]] = set()

    @rule(topic_filter=filter_names, value=st.integers(0, 3))
    def add(self, topic_filter: bytes, value: int) -> None:
        self.trie.add(topic_filter, value)
        self.pairs.add((topic_filter, value))

    @rule(data=st.data())
    def remove_one_that_is_there(self, data: st.DataObject) -> None:
        if self.pairs:
            pair = data.draw(st.sampled_from(sorted(self.pairs)))
            assert self.trie.remove(*pair) is True
            self.pairs.remove(pair)

    @rule(topic_filter=filter_names, value=st.integers(0, 3))
    def remove_any(self, topic_filter: bytes, value: int) -> None:
        assert self.trie.remove(topic_filter, value) is ((topic_filter, value) in self.pairs)
        self.pairs.discard((topic_filter, value))

    @rule(topic=topic_names)
    def match(self, topic: bytes) -> None:
        assert sorted(self.trie.match(topic)) == sorted(v for f, v in self.pairs if matches(f, topic))

    @invariant()
    def count_is_right(self) -> None:
        assert len(self.trie) == len(self.pairs)


class TopicTrieMachine(RuleBasedStateMachine):
    """Numbers stay with their topics; removed ones are forgotten; dump and load change nothing."""

    tries: Any = plain

    @initialize()
    def start(self) -> None:
        self.trie = self.tries.TopicTrie()
        self.numbers: dict[bytes, int] = {}

    @rule(topic=topic_names)
    def number(self, topic: bytes) -> None:
        number = self.trie.number(topic)
        assert number not in {n for t, n in self.numbers.items() if t != topic}
        assert self.numbers.setdefault(topic, number) == number

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.numbers:
            topic = data.draw(st.sampled_from(sorted(self.numbers)))
            number = self.numbers.pop(topic)
            self.trie.remove(number)
            with pytest.raises(NotFound):
                self.trie.name(number)
            with pytest.raises(NotFound):
                self.trie.remove(number)

    @rule(topic=topic_names, number=st.integers(1, 40))
    def put(self, topic: bytes, number: int) -> None:
        self.trie.put(number, topic)
        self.numbers = {t: n for t, n in self.numbers.items() if n != number and t != topic} | {topic: number}

    @rule(some=st.lists(st.tuples(st.integers(1, 40), topic_names), max_size=5))
    def put_all(self, some: list[tuple[int, bytes]]) -> None:
        packed = b"".join(DUMP_TOPIC.pack(number, len(topic)) + topic for number, topic in some)
        assert self.trie.put_all(packed)
        for number, topic in some:
            self.numbers = {t: n for t, n in self.numbers.items() if n != number and t != topic} | {topic: number}
        assert not self.trie.put_all(b"\x01")

    @rule(source=st.sampled_from(IMPLEMENTATIONS))
    def reload(self, source: ModuleType) -> None:
        copy = source.TopicTrie()
        copy.load(self.trie.dump())
        self.trie.load(copy.dump())

    @rule(topic_filter=filter_names)
    def match(self, topic_filter: bytes) -> None:
        assert sorted(self.trie.match(topic_filter)) == sorted(
            n for t, n in self.numbers.items() if matches(topic_filter, t)
        )

    @invariant()
    def all_are_found(self) -> None:
        assert len(self.trie) == len(self.numbers)
        assert self.trie.numbers_end > max(self.numbers.values(), default=0)
        for topic, number in self.numbers.items():
            assert self.trie.find(topic) == number
            assert self.trie.name(number) == topic


def _machine(machine: type[RuleBasedStateMachine], tries: ModuleType) -> Any:
    bound: Any = type(f"{machine.__name__}_{tries.__name__.rpartition('.')[2]}", (machine,), {"tries": tries})
    case = bound.TestCase
    case.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
    return case


TestPlainFilterTrie = _machine(FilterTrieMachine, IMPLEMENTATIONS[0])
TestPlainTopicTrie = _machine(TopicTrieMachine, IMPLEMENTATIONS[0])
TestFilterTrie = _machine(FilterTrieMachine, IMPLEMENTATIONS[-1])
TestTopicTrie = _machine(TopicTrieMachine, IMPLEMENTATIONS[-1])


@either
def test_numbers_are_dense_from_one_and_reused(tries: ModuleType) -> None:
    trie = tries.TopicTrie()
    assert [trie.number(b"t/%d" % i) for i in range(5)] == [1, 2, 3, 4, 5]
    assert trie.number(b"t/3") == 4
    assert trie.find(b"t") == 0
    trie.remove(2)
    assert trie.find(b"t/1") == 0
    assert trie.number(b"u") == 2
    assert trie.number(b"v") == 6


@either
def test_a_value_comes_once_per_filter_it_was_added_with(tries: ModuleType) -> None:
    trie = tries.FilterTrie()
    sink = object()
    for topic_filter in (b"a/#", b"a/#", b"a/+", b"a/#/#"):
        trie.add(topic_filter, sink)
    assert trie.match(b"a/b") == [sink] * 3
    assert trie.remove(b"a/#", sink) is True
    assert trie.remove(b"a/#", sink) is False
    assert trie.match(b"a/b") == [sink] * 2


@either
def test_values_are_let_go_when_removed(tries: ModuleType) -> None:
    class Sink:
        pass

    trie, sink = tries.FilterTrie(), Sink()
    gone = weakref.ref(sink)
    trie.add(b"a/+", sink)
    trie.remove(b"a/+", sink)
    del sink
    gc.collect()
    assert gone() is None


@either
def test_hostile_filters_cost_bounded_work(tries: ModuleType) -> None:
    """RabbitMQ's CVE-2026-67419: runs of wildcards made every publish combinatorial."""
    many = tries.FilterTrie()
    for n in range(1, 60):
        many.add(b"/".join([b"#"] * n + [b"z"]), n)
        many.add(b"/".join([b"#", b"+"] * n + [b"z"]), -n)
        many.add(b"/".join([b"#", b"a"] * n), 100 + n)
    deep = b"/".join([b"a"] * 120)
    assert sorted(many.match(deep)) == list(range(101, 160))
    topics = tries.TopicTrie()
    number = topics.number(deep)
    assert list(topics.match(b"/".join([b"#", b"a"] * 100))) == [number]
    assert list(topics.match(b"/".join([b"#", b"a"] * 100 + [b"z"]))) == []


@either
def test_filters_and_topics_of_hundreds_of_levels(tries: ModuleType) -> None:
    trie = tries.TopicTrie()
    deep = b"/".join(b"%d" % i for i in range(200))
    number = trie.number(deep)
    assert trie.name(number) == deep
    assert list(trie.match(deep)) == [number]
    assert list(trie.match(b"/".join([b"+"] * 200))) == [number]
    assert list(trie.match(b"#/199")) == [number]
    assert list(trie.match(b"/".join([b"+"] * 199))) == []


@either
def test_a_quota_of_topics_is_kept(tries: ModuleType) -> None:
    trie = tries.TopicTrie(topics_max=2)
    trie.number(b"a"), trie.number(b"b")
    with pytest.raises(Overloaded, match="limit 2"):
        trie.number(b"c")
    trie.remove(trie.find(b"a"))
    trie.number(b"c")
    with pytest.raises(InvalidName):
        tries.TopicTrie().number(b"x" * 65536)


@either
def test_a_damaged_dump_is_refused_and_leaves_an_empty_trie(tries: ModuleType) -> None:
    trie = tries.TopicTrie()
    for i in range(20):
        trie.number(b"fleet/%06d/temp" % i)
    good = trie.dump()
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x10
        with pytest.raises(CorruptFrame):
            trie.load(bad)
        assert len(trie) == 0
        assert trie.find(b"fleet/000001/temp") == 0
    for size in range(0, len(good), 7):
        with pytest.raises(CorruptFrame):
            trie.load(good[:size])
    trie.load(memoryview(good))
    assert len(trie) == 20
    assert trie.number(b"new") == 21


def test_the_compiled_trie_is_small() -> None:
    trie = compiled.TopicTrie()
    for i in range(200_000):
        trie.number(b"fleet/%06d/temp" % i)
    assert trie.memory_bytes() / len(trie) <= 80
    assert len(trie.match(b"fleet/+/temp")) == 200_000
    for i in range(200_000):
        trie.remove(i + 1)
    assert len(trie) == 0
    for i in range(200_000):
        trie.number(b"other/%06d/temp" % i)
    assert trie.memory_bytes() / len(trie) <= 150

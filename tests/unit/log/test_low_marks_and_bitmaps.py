"""Deleted records of a shared log are hidden from every search; a filter's bitmap is kept and never wrong."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.log import low_marks, topic_bitmaps
from mainstem.log.low_marks import LowMarks
from mainstem.log.topic_bitmaps import TopicBitmaps
from mainstem.log.topic_index import TopicIndex
from mainstem.model.errors import Overloaded
from mainstem.model.topic_filter import matches
from mainstem.model.topic_tries import TopicTrie

TOPICS = [b"a", b"a/b", b"a/c", b"b/c", b"b"]


def made(topics: list[bytes]) -> TopicIndex:
    """One record per entry, from offset 0 on."""
    index = TopicIndex.open(None, TopicTrie())
    numbers = array("I", (index.topics.number(topic) for topic in topics))
    index.add(0, memoryview(numbers))
    return index


def test_records_below_a_mark_are_hidden() -> None:
    index = made([b"x", b"y", b"x", b"y", b"x"])
    marks = LowMarks(index)
    assert marks.set(b"x", 3)
    assert list(marks.visible(array("q", [0, 1, 2, 3, 4]))) == [1, 3, 4]
    assert marks.hidden_count(index.topics.bitmap(b"#"), 0, 5) == 2
    assert marks.hidden_count(index.topics.bitmap(b"y"), 0, 5) == 0


def test_a_mark_only_grows() -> None:
    marks = LowMarks(made([b"x"] * 10))
    assert marks.set(b"x", 5)
    assert not marks.set(b"x", 4)
    assert marks.of(b"x") == 5


def test_reads_beyond_all_marks_cost_nothing() -> None:
    marks = LowMarks(made([b"x"] * 10))
    marks.set(b"x", 5)
    offsets = array("q", [5, 6, 7])
    assert marks.visible(offsets) is offsets


def test_a_topic_is_gone_when_all_it_has_is_hidden_and_back_with_its_next_record() -> None:
    index = made([b"x", b"x"])
    marks = LowMarks(index)
    number = index.topics.find(b"x")
    assert not marks.all_gone(b"x", number)
    marks.set(b"x", 2)
    assert marks.all_gone(b"x", number)
    index.add(2, memoryview(array("I", [number])))
    assert not marks.all_gone(b"x", number)


def test_marks_go_when_the_log_has_passed_them() -> None:
    marks = LowMarks(made([b"x", b"y"]))
    marks.set(b"x", 1)
    marks.set(b"y", 2)
    assert marks.prune(1) == [b"x"]
    assert marks.by_topic == {b"y": 2}


def test_marks_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_marks, "MARKS_MAX", 2)
    marks = LowMarks(made([b"x", b"y", b"z"]))
    marks.set(b"x", 1)
    marks.set(b"y", 1)
    marks.set(b"x", 3)
    with pytest.raises(Overloaded):
        marks.set(b"z", 1)


@given(
    topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=60),
    deleted=st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 60)),
    topic_filter=st.sampled_from([b"#", b"a/#", b"+", b"a/+", b"b/c"]),
    start=st.integers(0, 60),
)
@settings(deadline=None)
def test_what_is_visible_and_counted_is_what_a_plain_scan_says(
    topics: list[bytes], deleted: dict[bytes, int], topic_filter: bytes, start: int
) -> None:
    index = made(topics)
    marks = LowMarks(index)
    for topic, mark in deleted.items():
        marks.set(topic, mark)
    end = len(topics)
    expected = [
        offset
        for offset, topic in enumerate(topics)
        if offset >= start and matches(topic_filter, topic) and offset >= deleted.get(topic, 0)
    ]
    bitmap = index.topics.bitmap(topic_filter)
    offsets, _ = index.find_many(bitmap, start, end)
    assert list(marks.visible(offsets)) == expected
    assert index.count(bitmap, start, end) - marks.hidden_count(bitmap, start, end) == len(expected)


# -- bitmaps -----------------------------------------------------------------------------------------------------------


def test_a_bitmap_is_looked_up_once_and_extended_by_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    trie = TopicTrie()
    bitmaps, asked = TopicBitmaps(trie), []
    real = TopicBitmaps._looked_up
    monkeypatch.setattr(TopicBitmaps, "_looked_up", lambda self, f: asked.append(f) or real(self, f))
    numbers = [trie.number(b"a/%d" % n) for n in range(10)]
    first = bitmaps.of(b"a/#")
    assert bitmaps.of(b"a/#") is first
    trie.number(b"b")
    numbers.append(trie.number(b"a/new"))
    again = bitmaps.of(b"a/#")
    assert asked == [b"a/#"]
    assert [n for n in range(trie.numbers_end) if again[n >> 3] >> (n & 7) & 1] == sorted(numbers)


def test_bitmaps_of_several_filters_are_joined() -> None:
    trie = TopicTrie()
    for topic in TOPICS:
        trie.number(topic)
    joined = TopicBitmaps(trie).of_any([b"a", b"b/#"])
    found = {trie.name(n) for n in range(1, trie.numbers_end) if joined[n >> 3] >> (n & 7) & 1}
    assert found == {b"a", b"b", b"b/c"}


def test_what_is_kept_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_bitmaps, "FILTERS_MAX", 3)
    trie = TopicTrie()
    bitmaps = TopicBitmaps(trie)
    for n in range(50):
        bitmaps.of(b"f/%d" % n)
    assert len(bitmaps._kept) == 3


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 400)),
            st.tuples(st.just("remove"), st.integers(0, 400)),
            st.tuples(st.just("ask"), st.sampled_from([b"#", b"a/#", b"+/1", b"b/+"])),
        ),
        max_size=80,
    )
)
@settings(deadline=None)
def test_a_kept_bitmap_is_always_what_the_trie_says(steps: list[tuple[str, object]]) -> None:
    trie = TopicTrie()
    bitmaps = TopicBitmaps(trie)
    for step, what in steps:
        if step == "ask":
            assert isinstance(what, bytes)
            assert bytes(bitmaps.of(what)).rstrip(b"\0") == bytes(trie.bitmap(what)).rstrip(b"\0")
            continue
        assert isinstance(what, int)
        topic = b"%s/%d" % (b"ab"[what % 2 : what % 2 + 1], what // 2 % 20)
        if step == "add":
            trie.number(topic)
        elif trie.find(topic):
            trie.remove(trie.find(topic))
            bitmaps.forget()

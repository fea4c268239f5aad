"""The management API's patterns find what Python's do, and never take long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.admin import rabbit_patterns
from mainstem.admin.rabbit_patterns import Pattern
from mainstem.model.errors import InvalidArgument

ATOMS = st.sampled_from(["a", "b", ".", r"\d", r"\w", r"\.", "[ab]", "[^a]", "[a-c1]", "^", "$", "ab"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("*+?")).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
    ),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(PATTERNS, st.text("abc1._", max_size=8))
def test_what_python_finds_is_found(pattern: str, text: str) -> None:
    assert Pattern(pattern).search(text) == (re.search(pattern, text) is not None)


def test_a_pattern_that_makes_others_hang_is_answered_at_once() -> None:
    assert not Pattern("^(a+)+$").search("a" * 250 + "!")
    assert Pattern("(a|a)*b").search("a" * 250 + "b")


@pytest.mark.parametrize("pattern", ["(", "a)", "*", "[a", "a{3}", r"\1", "(?=a)", "x" * 300, "[z-a]", "\\"])
def test_what_is_not_understood_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        Pattern(pattern)


def test_a_pattern_may_not_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbit_patterns, "STEPS_MAX", 100)
    with pytest.raises(InvalidArgument, match="too long"):
        Pattern("(.*a" + ".?" * 100 + ")+b").search("aaaaaaaa")

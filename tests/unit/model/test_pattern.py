"""Patterns of clients: they may neither hang the broker nor fail without a word."""

from __future__ import annotations

import pytest

from mainstem.model.errors import InvalidArgument
from mainstem.model.pattern import Pattern


def test_a_pattern_is_found_anywhere_in_a_name_where_that_is_asked_for() -> None:
    assert Pattern(r"^orders\.(eu|us)\.[a-z]+$", anywhere=True).matches("orders.eu.paid")
    assert not Pattern("^paid", anywhere=True).matches("orders.eu.paid")
    assert Pattern("paid", anywhere=True).matches("orders.eu.paid")
    assert not Pattern("paid").matches("orders.eu.paid")


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(?:a|aa)*b", "(x*)*", "(.*a){20}"])
def test_a_pattern_that_makes_others_hang_is_answered_at_once(pattern: str) -> None:
    assert not Pattern(pattern).matches("a" * 250 + "!")


@pytest.mark.parametrize("pattern", ["(", "*", "[a", r"\1", "(?=a)", "((a{100}){100}){100}", "\udc80"])
def test_what_is_not_understood_or_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument, match="not understood"):
        Pattern(pattern)


def test_a_pattern_too_long_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="the limit is 1000"):
        Pattern("a" * 1_001)


def test_names_that_came_are_chosen_and_names_that_went_forgotten() -> None:
    pattern = Pattern("a.*")
    assert pattern.chosen(["a1", "b1"]) == {"a1"}
    assert pattern.chosen(["a2", "b1"]) == {"a2"}
    assert pattern.chosen([]) == set()


def test_a_name_that_is_no_utf_8_is_only_another_name() -> None:
    assert not Pattern("a.*").matches("b\udc80")

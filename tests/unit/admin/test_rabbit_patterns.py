"""The management API's patterns: chosen by clients, so they may neither hang the broker nor fail without a word."""

from __future__ import annotations

import pytest

from mainstem.admin.rabbit_api import compiled_pattern
from mainstem.model.errors import InvalidArgument


def test_a_pattern_is_found_anywhere_in_a_name() -> None:
    assert compiled_pattern(r"^orders\.(eu|us)\.[a-z]+$").search("orders.eu.paid")
    assert not compiled_pattern("^paid").search("orders.eu.paid")


def test_a_pattern_that_makes_others_hang_is_answered_at_once() -> None:
    assert not compiled_pattern("^(a+)+$").search("a" * 250 + "!")


@pytest.mark.parametrize("pattern", ["(", "*", "[a", r"\1", "(?=a)", "((a{100}){100}){100}"])
def test_what_is_not_understood_or_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument, match="not understood"):
        compiled_pattern(pattern)

"""Memory for large messages is used again, bounded, and given back when nobody needs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainstem.codec.large_memory import KEPT_BYTES_MAX, PAGED_BYTES_MIN, Block, kept_bytes, release_idle

SIZE = 3 * PAGED_BYTES_MIN


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    release_all()
    yield
    release_all()


def release_all() -> None:
    release_idle()
    release_idle()
    assert kept_bytes() == 0


def block_that_held(message: bytes) -> None:
    Block(SIZE).view()[: len(message)] = message


def test_a_block_is_the_next_message_s_and_counts_as_a_whole_from_then_on() -> None:
    new = Block(SIZE)
    assert new.kept(1000) < PAGED_BYTES_MIN, "what is only announced costs nothing"
    del new
    block_that_held(b"abc")
    assert kept_bytes() >= SIZE
    used = Block(SIZE - 1000)
    assert bytes(used.view()[:3]) == b"abc"
    assert used.kept(1000) >= SIZE
    assert kept_bytes() == 0


def test_whoever_has_a_part_of_it_keeps_it_from_others() -> None:
    part = Block(SIZE).view()[:3]
    part[:] = b"abc"
    assert kept_bytes() == 0
    block_that_held(b"xyz")
    assert bytes(part) == b"abc"


def test_a_small_message_does_not_take_the_memory_of_a_very_large_one() -> None:
    block_that_held(b"abc")
    small = Block(SIZE // 2 - (64 << 10))
    assert kept_bytes() >= SIZE
    del small


def test_what_did_not_become_whole_is_given_back() -> None:
    block = Block(SIZE)
    block.spoil()
    del block
    assert kept_bytes() == 0


def test_only_so_much_is_kept() -> None:
    blocks = [Block(KEPT_BYTES_MAX // 3) for _ in range(6)]
    del blocks
    assert 0 < kept_bytes() <= KEPT_BYTES_MAX


def test_what_nobody_used_between_two_calls_is_given_back() -> None:
    block_that_held(b"abc")
    assert release_idle() == 0
    block_that_held(b"abc")  # it is used
    assert release_idle() == 0
    assert release_idle() >= SIZE
    assert kept_bytes() == 0

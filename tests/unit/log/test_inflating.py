"""What was inflated is found again by whoever has the same bytes, and by nobody else."""

from __future__ import annotations

import pytest

from mainstem.codec.compression import Codec, deflate
from mainstem.log import inflating
from mainstem.log.inflating import KEY_BYTES, bring_inflated, inflate_soon
from mainstem.model.errors import MessageTooLarge

LARGE = bytes(inflating.HERE_BYTES_MAX + 1)
LIMIT = inflating.INFLATED_BYTES_MAX


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflating, "_kept", inflating._Kept())


def test_what_was_brought_is_there_for_the_next() -> None:
    packed = deflate(Codec.GZIP, LARGE)
    brought = bring_inflated(Codec.GZIP, packed, LIMIT)
    assert brought.data == LARGE
    assert bring_inflated(Codec.GZIP, bytes(bytearray(packed)), LIMIT) is brought
    assert inflate_soon(Codec.GZIP, bytes(bytearray(packed)), LIMIT) is brought.data


def test_two_that_look_alike_are_two() -> None:
    """Same size, same end: as a client that wants another's records would make them."""
    end = b"z" * KEY_BYTES
    first, second = (bring_inflated(Codec.NONE, bytes([one]) + LARGE + end, LIMIT) for one in (1, 2))
    assert (first.data[0], second.data[0]) == (1, 2)
    assert inflate_soon(Codec.NONE, first.data, LIMIT)[0] == 1
    assert inflate_soon(Codec.NONE, second.data, LIMIT)[0] == 2


def test_memory_is_bounded_and_those_used_last_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflating, "KEPT_BYTES_MAX", 3 * 2 * len(LARGE))
    data = [LARGE[1:] + bytes([one]) for one in range(4)]
    first, second = bring_inflated(Codec.NONE, data[0], LIMIT), bring_inflated(Codec.NONE, data[1], LIMIT)
    bring_inflated(Codec.NONE, data[2], LIMIT)
    assert bring_inflated(Codec.NONE, bytes(bytearray(data[0])), LIMIT) is first
    bring_inflated(Codec.NONE, data[3], LIMIT)
    assert bring_inflated(Codec.NONE, data[0], LIMIT) is first
    assert bring_inflated(Codec.NONE, data[1], LIMIT) is not second


def test_a_limit_holds_for_its_owner_alone() -> None:
    packed = deflate(Codec.ZSTD, LARGE)
    assert isinstance(bring_inflated(Codec.ZSTD, packed, 1000).fault, MessageTooLarge)
    assert bring_inflated(Codec.ZSTD, packed, LIMIT).data == LARGE
    assert isinstance(bring_inflated(Codec.ZSTD, packed, 1000).fault, MessageTooLarge), "of what is kept, too"
    assert inflate_soon(Codec.ZSTD, packed, LIMIT) == LARGE

"""Bytes to requests: however they are cut, the same requests come out, and large ones lie in buffers of their own."""

from __future__ import annotations

import random

import pytest

from mainstem.model.errors import PeerViolation
from mainstem.protocols.kafka.request_channel import KEPT_MAX, READ_BYTES, Buffers, RequestChannel


def with_size(request: bytes) -> bytes:
    return len(request).to_bytes(4) + request


@pytest.mark.parametrize("seed", range(6))
def test_requests_come_out_whole_however_they_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice((1, 3, 200, 5_000, 16_384, 16_385, 70_000, 400_000)) for _ in range(60)]
    requests = [rng.randbytes(size) for size in sizes]
    stream = b"".join(map(with_size, requests))
    channel = RequestChannel(request_bytes_max=1 << 20)
    found: list[bytes] = []
    at = 0
    while at < len(stream):
        step = rng.choice((1, 2, 5, 100, 4_096, 100_000, 600_000))
        found += [bytes(request) for request in channel.feed(stream[at : at + step])]
        at += step
    assert found == requests


def test_channels_share_one_buffer_and_keep_what_is_unfinished_apart() -> None:
    shared = bytearray(READ_BYTES)
    one, other = (RequestChannel(request_bytes_max=1 << 20, shared=shared) for _ in range(2))
    first, second = with_size(b"a" * 50), with_size(b"b" * 50)
    assert [bytes(request) for request in one.feed(first[:30])] == []
    assert [bytes(request) for request in other.feed(second[:2])] == []
    assert [bytes(request) for request in one.feed(first[30:])] == [b"a" * 50]
    assert [bytes(request) for request in other.feed(second[2:])] == [b"b" * 50]


def test_only_what_has_a_buffer_of_its_own_may_be_changed() -> None:
    channel = RequestChannel(request_bytes_max=1 << 20)
    small, large = with_size(bytes(100)), with_size(bytes(300_000))
    assert [request.readonly for request in channel.feed(small + large)] == [True, False]


def test_after_a_large_request_the_next_one_is_read_where_it_stays() -> None:
    channel = RequestChannel(request_bytes_max=1 << 20, buffers=Buffers())
    requests = [bytes([n]) * (600_000 + n) for n in range(5)]
    list(channel.feed(with_size(requests[0])))
    for request in requests[1:]:
        data, room = with_size(request), channel.room()
        assert channel.expecting
        assert len(room) > READ_BYTES
        where, count = room.obj, min(len(room), len(data))
        room[:count] = data[:count]
        found = list(channel.filled(count)) or list(channel.feed(data[count:]))
        assert [bytes(one) for one in found] == [request]
        assert found[0].obj is where
    kept = list(channel.feed(with_size(requests[0])))
    list(channel.feed(with_size(requests[1])))
    assert bytes(kept[0]) == requests[0]  # it is not lent to anyone while somebody looks at it


def test_small_requests_after_a_large_one_come_out_whole() -> None:
    channel = RequestChannel(request_bytes_max=1 << 20)
    requests = [bytes(600_000), b"a" * 10, b"b" * 20_000, b"c" * 700_000, b"d", b"e" * 300_000, b"f" * 290_000]
    found = [bytes(one) for one in channel.feed(b"".join(map(with_size, requests)))]
    assert found == requests
    assert [bytes(one) for one in channel.feed(with_size(b"g")[:2])] == []
    assert [bytes(one) for one in channel.feed(with_size(b"g")[2:])] == [b"g"]


def test_a_buffer_is_used_again_once_nobody_looks_at_it() -> None:
    buffers = Buffers()
    first = buffers.take(300_000)
    part, where = first[10:20], id(first.obj)
    second = buffers.take(300_000)
    assert id(second.obj) != where
    del first
    assert id(buffers.take(300_000).obj) != where  # a part of it is still in use
    del part
    again = buffers.take(300_000)
    assert id(again.obj) == where
    held = [buffers.take(300_000) for _ in range(2 * KEPT_MAX)]
    assert len({id(one.obj) for one in held}) == len(held)


@pytest.mark.parametrize("size", [0, -1, (1 << 20) + 1])
def test_a_size_beyond_the_limit_is_refused_before_it_is_kept(size: int) -> None:
    channel = RequestChannel(request_bytes_max=1 << 20)
    with pytest.raises(PeerViolation):
        list(channel.feed(size.to_bytes(4, signed=True)))

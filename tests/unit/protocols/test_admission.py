"""One address cannot take the places of all others."""

from __future__ import annotations

from typing import Any

from mainstem.protocols.admission import ADDRESSES_MAX, Admission


class Peer:
    def __init__(self, address: str) -> None:
        self._address = address

    def get_extra_info(self, name: str) -> Any:
        return (self._address, 1234)


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_address_has_so_many_places() -> None:
    admission = Admission(2, 100)
    first, other = Peer("10.0.0.1"), Peer("10.0.0.2")
    assert admission.admit(first)
    assert admission.admit(first)
    assert not admission.admit(first)
    assert admission.admit(other)
    admission.leave(first)
    assert admission.admit(first)


def test_an_address_comes_so_often() -> None:
    time = Time()
    admission = Admission(1000, 2, time)
    peer = Peer("10.0.0.1")
    assert [admission.admit(peer) for _ in range(9)] == [True] * 8 + [False]
    time.now = 1.0
    assert [admission.admit(peer) for _ in range(3)] == [True, True, False]


def test_loopback_is_not_counted() -> None:
    admission = Admission(1, 1)
    assert all(
        admission.admit(Peer(address)) for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1") for _ in range(20)
    )


def test_what_is_remembered_is_bounded() -> None:
    admission = Admission(10, 10)
    for number in range(ADDRESSES_MAX + 10):
        peer = Peer(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        assert admission.admit(peer)
        admission.leave(peer)
    assert len(admission._tokens) <= ADDRESSES_MAX

"""What all clients together may leave unread."""

from __future__ import annotations

from typing import Any

from mainstem.protocols.unsent import SHARE_BYTES, Unsent

MIB = 1 << 20


class Server:
    out_bytes_max = MIB


class Peer:
    """A connection that only remembers what it may leave."""

    server = Server

    def __init__(self, unsent: Unsent) -> None:
        self.all, self.unsent, self.waiting, self.limits = unsent, 0, 0, list[int]()

    def limit_output(self, bytes_max: int) -> None:
        self.limits.append(bytes_max)

    def note_unsent(self) -> None:
        self.all.note(self, self.waiting)  # type: ignore[arg-type]

    def leave(self, size: int) -> None:
        self.waiting = size
        self.note_unsent()


def peers(count: int) -> tuple[Unsent, list[Any], list[bool]]:
    unsent, told = Unsent(4 * MIB), list[bool]()
    unsent.listeners.append(told.append)
    return unsent, [Peer(unsent) for _ in range(count)], told


def test_nobody_is_limited_while_there_is_room_for_all() -> None:
    unsent, some, told = peers(4)
    for peer in some:
        peer.leave(MIB)
    assert unsent.bytes == 4 * MIB
    assert not unsent.tight
    assert told == []


def test_beyond_it_each_may_leave_its_share_until_half_is_gone() -> None:
    _, some, told = peers(6)
    for peer in some[:4]:
        peer.leave(MIB)
    some[4].leave(SHARE_BYTES)
    assert told == [True]
    assert [peer.limits for peer in some] == [[SHARE_BYTES]] * 4 + [[], []], "who left little is not touched"
    some[5].leave(SHARE_BYTES + 1)
    assert some[5].limits == [SHARE_BYTES]
    some[0].leave(0)
    some[1].leave(0)
    assert told == [True], "more than half is still there"
    some[2].leave(MIB // 2)
    assert told == [True, False]
    assert [peer.limits for peer in some] == [[SHARE_BYTES, MIB]] * 4 + [[], [SHARE_BYTES, MIB]]


def test_what_a_lost_connection_left_is_gone() -> None:
    unsent, some, told = peers(5)
    for peer in some:
        peer.leave(MIB)
    for peer in some[:3]:
        unsent.forget(peer)
    assert unsent.bytes == 2 * MIB
    assert told == [True, False]
    assert [peer.limits for peer in some] == [[SHARE_BYTES]] * 3 + [[SHARE_BYTES, MIB]] * 2


def test_a_transport_that_sent_meanwhile_is_asked_once_a_second() -> None:
    unsent, some, _ = peers(2)
    for peer in some:
        peer.leave(MIB)
        peer.waiting = 0
    unsent.review()
    assert unsent.bytes == 0

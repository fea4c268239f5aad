"""Who is on this machine, and what is asked of the sockets to them."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest

from mainstem.protocols.kafka.loopback import is_loopback, stop_pacing


class Transport:
    def __init__(self, sock: socket.socket, peer: object) -> None:
        self._known = {"socket": sock, "peername": peer}

    def get_extra_info(self, name: str) -> Any:
        return self._known[name]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_these_peers_are_on_this_machine(host: str) -> None:
    assert is_loopback((host, 9092))


@pytest.mark.parametrize("peer", [("10.0.0.1", 1), ("::ffff:10.0.0.1", 1), ("fe80::1%eth0", 1), "/run/socket", None])
def test_these_are_not(peer: object) -> None:
    assert not is_loopback(peer)


@pytest.mark.skipif(sys.platform != "linux", reason="an option of Linux")
def test_only_what_is_sent_to_this_machine_is_left_unpaced() -> None:
    option = socket.TCP_CONGESTION
    with socket.socket() as near, socket.socket() as far:
        before = far.getsockopt(socket.IPPROTO_TCP, option, 16)
        stop_pacing(Transport(near, ("127.0.0.1", 1)))
        stop_pacing(Transport(far, ("10.0.0.1", 1)))
        assert near.getsockopt(socket.IPPROTO_TCP, option, 16).rstrip(b"\0") == b"reno"
        assert far.getsockopt(socket.IPPROTO_TCP, option, 16) == before

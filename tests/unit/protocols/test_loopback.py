"""What is asked of the sockets to clients on this machine, and of no others."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest

from mainstem.protocols.loopback import stop_pacing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="an option of Linux")


class Transport:
    def __init__(self, host: str) -> None:
        self._known = {"peername": (host, 1)}

    def get_extra_info(self, name: str) -> Any:
        return self._known[name]


def control_after(host: str, before: bytes) -> bytes:
    """The socket's congestion control, which was `before`."""
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, before)
        stop_pacing(Transport(host), sock)
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


@pytest.fixture
def other() -> bytes:
    """A control that is not the one we choose; without one there is nothing to see."""
    with open("/proc/sys/net/ipv4/tcp_allowed_congestion_control", "rb") as file:
        found = [name for name in file.read().split() if name != b"reno"]
    return found[0] if found else pytest.skip("this kernel has only reno")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_what_is_sent_to_this_machine_is_not_paced(host: str, other: bytes) -> None:
    assert control_after(host, other) == b"reno"


@pytest.mark.parametrize("host", ["10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0"])
def test_what_is_sent_elsewhere_is_left_to_the_system(host: str, other: bytes) -> None:
    assert control_after(host, other) == other


def test_a_socket_that_is_not_tcp_stays_as_it_is() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        stop_pacing(Transport("127.0.0.1"), ours)
        ours.send(b"as before")
        assert theirs.recv(100) == b"as before"

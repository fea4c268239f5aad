"""Peers on this machine: what is sent to them is not paced.

Where the system's congestion control is BBR, a timer of the kernel spreads over time what a socket sends, so that no queue
on the way fills up. Between two processes there is none; the timer costs a tenth of all it takes to send a large answer.
"""

from __future__ import annotations

import contextlib
import socket
from ipaddress import ip_address
from typing import Any

_OPTION: int | None = getattr(socket, "TCP_CONGESTION", None)  # Linux
_UNPACED = b"reno"  # every kernel has it, and allows it to everyone


def is_loopback(peer: object) -> bool:
    """`peer` as a transport names it."""
    try:
        address = ip_address(peer[0]) if isinstance(peer, tuple) else None
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and (mapped or address).is_loopback


def stop_pacing(transport: Any) -> None:
    """If its peer is on this machine."""
    if _OPTION is not None and is_loopback(transport.get_extra_info("peername")):
        with contextlib.suppress(OSError):  # then it stays as it is
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _OPTION, _UNPACED)

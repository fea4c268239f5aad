"""Peers on this machine: what is sent to them is not paced.

Where the system's congestion control is BBR, a timer of the kernel spreads over time what a socket sends, so that no queue
on the way fills up. Between two processes there is none, and the timer costs a tenth of all it takes to send much.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from mainstem.protocols.admission import address_of

_OPTION: int | None = getattr(socket, "TCP_CONGESTION", None)  # Linux
_UNPACED = b"reno"  # every kernel has it, and allows it to everyone


def stop_pacing(transport: Any, sock: Any) -> None:
    """Of a transport over this socket, if its peer is on this machine."""
    if _OPTION is not None and address_of(transport) is None:
        with contextlib.suppress(OSError):  # not TCP, or not allowed: then it stays as it is
            sock.setsockopt(socket.IPPROTO_TCP, _OPTION, _UNPACED)

"""The load generator behind `mainstem bench` and `bench/`: one compiled process that drives any broker and counts what
it really did. `_schedule.pyx` says when to send, one `_<protocol>.pyx` what; `<protocol>.py` connects and declares.
"""

from __future__ import annotations

import select

from mainstem.server.cli.failures import MissingExtra


def require_epoll() -> None:
    """A generator that costs more than what it measures would measure itself: there is no other."""
    if not hasattr(select, "epoll"):
        raise MissingExtra(
            "the load generator waits for its sockets by epoll, which this system does not have",
            fix="run mainstem bench on Linux, with the address of this broker",
        )

"""The load generator behind `mainstem bench` and `bench/`: one compiled process that drives any broker and counts what
it really did. `_schedule.pyx` says when to send, one `_<protocol>.pyx` what; `<protocol>.py` connects and declares.
"""

from __future__ import annotations

from importlib.util import find_spec

from mainstem.server.cli.failures import MissingExtra

PROTOCOLS = ("mqtt", "kafka", "amqp")


def require_compiled() -> None:
    """A plain generator would measure itself: there is none."""
    missing = [name for name in ("schedule", *PROTOCOLS) if find_spec(f"{__name__}._{name}") is None]
    if missing:
        raise MissingExtra(
            "the load generator is compiled code for Linux, and this installation has none of it",
            fix="apt install gcc python3-dev, then make setup",
        )

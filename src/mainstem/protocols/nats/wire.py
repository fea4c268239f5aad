"""The incoming half of a NATS connection: one pass over what a socket read brought.

    PUB subject [reply] size CR LF payload CR LF
    HPUB subject [reply] header-size size CR LF headers payload CR LF
    any other command: one line

`receive(bytes)`, then `next(time_ms)` until it returns None; or the reactor hands over a read where it lies. A publish whose
subject is known (`_routes.pyx`) and which just goes to its topic is put into the open batch of its log in place. What needs
a decision is returned as a tuple of `commands`: everything else, and publishes to subjects that are live only, belong to a
stream or may not be published to, that carry a key or a time of their own, or that ask somebody who may not be there.
Only an unfinished command is kept between reads; its size is checked before it is buffered.
"""

from __future__ import annotations

from mainstem.protocols._routes import RouteTable
from mainstem.protocols.nats._wire import Inbound

__all__ = ["Inbound", "RouteTable", "error_line"]


def error_line(text: str) -> bytes:
    return b"-ERR '%b'\r\n" % text.replace("'", "`").replace("\r", " ").replace("\n", " ").encode()

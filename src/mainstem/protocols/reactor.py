"""Listening: where one message is one system call, what stands around that call decides.

A `Server` whose connections read in place (`reads_in_place`: their `inbound` is an `Intake`) is served by the compiled
`Reactor`, everything else, TLS and systems without epoll by the loop's own transports. A reactor has a `PollSet` for each
namespace whose clients are connected, and one for those who are not logged in: an epoll of its own, which the loop watches
as a single reader. One turn of a poll set:

    epoll_wait → for each ready socket: one recv into the one shared buffer → inbound.take(where it lies)
               → one tick: logs are written, records delivered, and each dirty connection sends from where it encoded

No bytes object, no call of Python and no callback of the loop for each message. Its `SocketTransport` is a transport by
asyncio's rules: write limits, pausing, half-closing. The end of a connection is reported in a turn of its own.

Fair by shape: the loop calls each poll set that is ready once in a turn. A poll set reads the server's `turn_bytes`, divided
by how many of its sockets are ready (512 at most, 1 KiB each at least). So one connection's backlog takes no more than its
slice while others wait, and a namespace with ten thousand connections no more than its turn. While several poll sets have
more than they may read, the one with the largest share (`turns.share_of`) reads its whole turn, the others in proportion.

While clients are about that have little to say and to hear, a turn is no longer than a millisecond: a poll set knows what a
byte of it costs, with the tick, and reads so many fewer. Those that such clients are in come before it (`Turns.let_in`).
Whoever floods alone is read in whole turns; while a namespace is alone each of its sockets is, `alone_bytes` together, and
delivery's slices are four times as long.

If no slice was filled, those that came meanwhile are read too, up to four times and 64 KiB in all: they share its tick. 128
connections are accepted in a turn. What a socket does not take waits in its transport, the protocol is told beyond
`set_write_buffer_limits`, and EPOLLOUT is asked for only then. Level-triggered: whoever is not served in this turn is ready
in the next, and the kernel puts whom it told of last.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from mainstem.protocols._reactor import Reactor
from mainstem.protocols.connection import Server

HAS_EPOLL = hasattr(select, "epoll")  # Linux


class Listener(Protocol):
    def close(self) -> None:
        """Take no one new."""


async def listen(
    server: Any,
    sock: socket.socket,
    *,
    backlog: int,
    now_ns: Callable[[], int],
    tls: ssl.SSLContext | None = None,
    handshake_seconds: float | None = None,
) -> Listener:
    """Serve a bound socket on the running loop."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else connections of an earlier broker forbid it
    loop = asyncio.get_running_loop()
    if HAS_EPOLL and tls is None and isinstance(server, Server) and server.reads_in_place:
        reactor: Listener = Reactor(loop, server, now_ns, sock, backlog)
        return reactor
    return await loop.create_server(
        server.make_connection,
        sock=sock,
        backlog=backlog,
        ssl=tls,
        ssl_handshake_timeout=handshake_seconds if tls is not None else None,
    )


def let_go(listeners: list[Listener]) -> None:
    """The loop is about to end: sockets that still wait for their peers are closed."""
    for listener in listeners:
        finish = getattr(listener, "finish", None)
        if finish is not None:
            finish()

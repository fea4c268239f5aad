"""The one asyncio protocol under MQTT, Kafka and AMQP: an output buffer, back pressure, silence deadlines, counters.

Rules of this file:

- Nothing is written to the socket where it is made. `send` collects into `out` and marks the connection dirty; the
  ticker calls `flush` once per tick, so that a thousand answers are one system call.
- The peer may leave `out_bytes_max` unread. Beyond it `blocked` is true and `on_blocked` is called; `on_room` when it has
  read on. A subclass decides what that means (stop reading, drop, serve from the log); this class only tells it.
- Reading stops while any reason to hold it stands (`hold` / `release`); a held connection is not counted as silent.
- No timer per connection or packet: `Deadlines` looks at each connection about once per silence interval.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from typing import Any, Protocol

from mainstem.broker.delivery.turns import Turns
from mainstem.broker.namespaces.quotas import Member
from mainstem.broker.rights.access import Principal
from mainstem.protocols.admission import Admission
from mainstem.protocols.login import HOLD_QUEUE as HOLD_QUEUE
from mainstem.protocols.login import Expiries
from mainstem.protocols.metering import Metering
from mainstem.protocols.porter import Forward
from mainstem.protocols.unfinished import Unfinished
from mainstem.protocols.unsent import Unsent

logger = logging.getLogger("mainstem.connection")

OUT_BYTES_MAX = 1024 * 1024
TURN_BYTES = 256 * 1024
ALONE_BYTES = 2 << 20
LOOP_READ_BYTES = 128 * 1024  # of a socket that the loop reads (TLS, WebSocket): who brings so much may have more
JOIN_BYTES_MAX = 64 * 1024  # below this one copy is cheaper than a vectored write
LOGIN_ENDED = "its user was removed, or may no longer do what it was let in for"
CLOSE_SECONDS_MAX = 5  # a peer that does not read our last words is cut off

HOLD_OUTPUT = 1  # it does not read what we answer
HOLD_LOG = 2  # too much is not yet synced
HOLD_TURN = 8  # it has more, and others come first (`wait_for_turn`)
HOLD_DELIVERY = 32  # what it published is to reach its readers first
HOLD_STOP = 1024  # the broker stops: what was read is answered, nothing more is heard
HOLD_LARGE = 512  # a large message of its own has no place in the log yet (`large.py`)
BLOCKED_BY_PEER = 1  # why nothing more is written for now (2: `metering.py`)


class Ticker(Protocol):
    """The part of broker.ticker that a connection uses."""

    ahead_bytes: int  # that may be read in one turn
    on_turn: Callable[[], None] | None  # someone follows a message
    loop_read: bool  # set where a socket of the loop's brought something

    def note_turn(self) -> None:
        """A socket is read, and a tick follows, while there is `on_turn`."""

    def mark_dirty(self, connection: Any) -> None:
        """Call `connection.flush()` once, after this turn's log writes."""

    def request(self) -> None:
        """Run a tick this loop turn."""

    def begin_turn(self) -> bool:
        """Whether the caller ticks at the end of its turn (`end_turn`)."""

    def end_turn(self) -> None:
        """Tick if anything was gathered."""


class Counters:
    """Plain integers of one protocol; the metrics page reads them."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "connections",
        "connections_maximum",
        "connections_total",
        "messages_dropped",
        "messages_in",
        "messages_out",
        "refused_total",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    bytes_in: int
    bytes_out: int
    connections: int
    connections_maximum: int
    connections_total: int
    messages_dropped: int
    messages_in: int
    messages_out: int
    refused_total: int


class Deadlines:
    """Silence deadlines in whole seconds. `advance` is called about once a second by the server's one timer."""

    def __init__(self) -> None:
        self.second = 0  # coarse monotonic time, read by every connection instead of a clock
        self._due: dict[int, set[Connection]] = {}

    def watch(self, connection: Connection, silence_seconds: int, *, however: bool = False) -> None:
        """Call `connection.on_silence()` when it was not heard for that long; 0 ends the watch.

        With `however` it has that long whatever it says: a byte now and then is no login, and no goodbye either.
        """
        self.forget(connection)
        connection.silence_seconds = silence_seconds
        connection.due_however = however
        if silence_seconds:
            connection.heard_second = self.second
            self._put(connection, self.second + silence_seconds + 1)

    def forget(self, connection: Connection) -> None:
        waiting = self._due.get(connection.due_second)
        if waiting is not None:
            waiting.discard(connection)
        connection.silence_seconds = 0

    def advance(self, second: int) -> None:
        for due in range(self.second + 1, second + 1):
            self.second = due
            for connection in self._due.pop(due, ()):
                self._look_at(connection)

    def _look_at(self, connection: Connection) -> None:
        if connection.closing:
            connection.abort()
            return
        if connection.held:  # our own back pressure is not the peer's silence
            connection.heard_second = self.second
        due = connection.heard_second + connection.silence_seconds + 1
        if due > self.second and (connection.held or not connection.due_however):
            self._put(connection, due)
            return
        connection.silence_seconds = 0
        try:
            connection.on_silence()
        except Exception:  # the timer is everybody's
            connection.break_off()

    def _put(self, connection: Connection, due_second: int) -> None:
        connection.due_second = due_second
        self._due.setdefault(due_second, set()).add(connection)


class Server:
    """What all connections of one protocol share. Protocols subclass it to add the broker and their limits."""

    protocol = ""  # that its clients speak, as logs and audits name it; the wiring sets it
    reads_in_place = False  # their `inbound` half takes bytes where they lie: see `reactor.py`
    turn_bytes = TURN_BYTES  # of a namespace's clients in one turn, where they are read in place
    alone_bytes = ALONE_BYTES  # the same, while all clients are of one namespace and none has little to say; 0: no more
    forward: Forward | None = None  # to other cells of a cluster that has several; `porter.py`
    listener = ""  # its name, where it has that
    moves_between_requests = False  # its connections need no porter

    def __init__(self, ticker: Ticker, *, connections_max: int = 100_000) -> None:
        self.ticker = ticker
        self.connections_max = connections_max
        self.out_bytes_max = OUT_BYTES_MAX
        self.connections: set[Connection] = set()
        self.counters = Counters()
        self.deadlines = Deadlines()
        self.expiries = Expiries()
        self.admission: Admission | None = None  # limits by address, if the wiring sets them
        self.tls: ssl.SSLContext | None = None  # for protocols that begin it inside a plain connection (`upgrade.py`)
        self.unsent = Unsent()  # the wiring sets one for all protocols
        self.unfinished = Unfinished()  # as it does here
        self.turns = Turns()  # and here: the broker's

    async def run_deadlines(self) -> None:
        """The server's one timer; cancel it to stop."""
        loop = asyncio.get_running_loop()
        started = loop.time() - self.deadlines.second
        while True:
            await asyncio.sleep(1)
            self.deadlines.advance(int(loop.time() - started))
            self.expiries.end_due(time.time())
            self.unsent.review()

    def set_tight(self, tight: bool) -> None:
        """All clients together left too much unread, or no longer do: gather less for each before it is written."""

    def end_logins(self, holds: Callable[[Principal], bool]) -> None:
        """Users have changed: who came in by a login that no longer holds has to leave."""
        for connection in list(self.connections):
            principal = connection.logged_in()
            if principal is not None and not holds(principal):
                connection.end_login()

    def hear_no_more(self) -> None:
        """The broker is about to stop: what clients were heard saying can be answered, once nothing is added to it."""
        for connection in list(self.connections):
            connection.hold(HOLD_STOP)

    def close_all(self, reason: str) -> None:
        for connection in list(self.connections):
            connection.close(reason)

    async def settle(self) -> None:
        """Clients are gone: what was begun for them ends before the broker closes."""

    def let_go(self) -> None:
        """The loop is about to end: it must not wait for peers that were told goodbye and stay."""
        for connection in list(self.connections):
            connection.abort()


class Connection(asyncio.Protocol):
    """One peer. Subclasses define `on_data` and `on_lost`, and call `send`."""

    metered_by: type[Metering] = Metering  # a protocol may have its own

    __slots__ = (
        "blocked",
        "blocked_by",
        "closing",
        "dirty",
        "due_however",
        "due_second",
        "heard_second",
        "held",
        "meter",
        "metering",
        "opened_second",
        "out",
        "out_bytes",
        "server",
        "silence_seconds",
        "tenant",
        "transport",
        "unfinished",
        "unsent",
    )

    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: Any = None
        self.out: list[bytes] | None = None  # allocated on use: an idle connection costs no list
        self.out_bytes = 0
        self.dirty = False
        self.blocked = False
        self.blocked_by = 0
        self.closing = False
        self.tenant = ""  # the namespace in whose turns it is served; none before its login
        self.metering = self.metered_by(self)  # what its quotas ask of it
        self.meter: Member | None = None  # where one of them has a rate: told of every read and write
        self.held = 0
        self.heard_second = 0
        self.opened_second = 0
        self.silence_seconds = 0
        self.due_second = -1
        self.due_however = False
        self.unsent = 0
        self.unfinished = 0

    # What a subclass says.

    def on_open(self) -> None:
        """The peer is there; nothing was read yet."""

    def on_data(self, data: bytes) -> None:
        raise NotImplementedError

    def on_lost(self) -> None:
        """The peer is gone; called once."""

    def on_silence(self) -> None:
        """Nothing was heard for the watched interval."""
        self.close("silent for too long")

    def on_blocked(self) -> None:
        """The peer left more than `out_bytes_max` unread. By default its requests wait."""
        self.hold(HOLD_OUTPUT)

    def on_room(self) -> None:
        """The peer has read on."""
        self.release(HOLD_OUTPUT)

    def on_released(self) -> None:
        """Reading goes on; what was read before and not handled can be now."""

    # What a subclass calls.

    def send(self, data: bytes) -> None:
        """Collect `data` for this tick's one write."""
        if self.out is None:
            self.out = [data]
        else:
            self.out.append(data)
        self.out_bytes += len(data)
        if not self.dirty:
            self.dirty = True
            self.server.ticker.mark_dirty(self)

    def flush(self) -> None:
        """One write of all that was collected. The ticker calls it; nobody else needs to."""
        self.dirty = False
        out = self.out
        if out is None:
            return
        self.out = None
        size, self.out_bytes = self.out_bytes, 0
        transport = self.transport
        if transport is None or self.closing:
            return
        self.server.counters.bytes_out += size
        if len(out) == 1:
            transport.write(out[0])
        elif size <= JOIN_BYTES_MAX:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)
        self.note_unsent()
        if self.meter is not None:
            self.meter.wrote(size)

    def write(self, data: bytes | memoryview) -> None:
        """To a transport of the loop's: where a compiled half collects instead of `send`."""
        self.transport.write(data)
        self.note_unsent()
        if self.meter is not None:
            self.meter.wrote(len(data))

    def note_unsent(self) -> None:
        """After a write: what the peer did not take counts against what all may leave."""
        if self.transport is not None:
            size = self.transport.get_write_buffer_size()
            if size != self.unsent:
                self.server.unsent.note(self, size)

    def limit_output(self, bytes_max: int) -> None:
        if self.transport is not None and not self.closing:
            self.transport.set_write_buffer_limits(high=bytes_max, low=bytes_max // 4)

    def unsent_bytes(self) -> int:
        """What waits here and in the transport."""
        return self.out_bytes + (self.transport.get_write_buffer_size() if self.transport is not None else 0)

    def close(self, reason: str = "", *, linger: bool = False) -> None:
        """Send what is collected, then close. A reason is logged: someone will ask why a client was disconnected.

        Closing with input unread resets the connection, and our last words with it. With `linger` only our side is
        closed and input goes on being read, unheard, until the peer closes too or CLOSE_SECONDS_MAX have passed.
        """
        if self.closing:
            return
        if reason:
            logger.info("%s disconnected: %s", self.label(), reason)
        self.flush()
        self.closing = True
        if self.transport is None:
            return
        if linger and self.transport.can_write_eof():
            if self.held:
                self.transport.resume_reading()
            self.transport.write_eof()
        else:
            self.transport.close()
        if self in self.server.connections:  # else the transport is already gone
            self.server.deadlines.watch(self, CLOSE_SECONDS_MAX, however=True)

    def finish(self) -> None:
        """Our last word is collected: the peer closes. Until then, or for CLOSE_SECONDS_MAX, its input is read, unheard.

        A peer that is still writing when it reads our goodbye would otherwise fail on a socket that is gone.
        """
        if self.closing:
            return
        self.flush()
        self.closing = True
        transport = self.transport
        if transport is None:
            return
        if self.held:
            transport.resume_reading()
        if hasattr(transport, "stop_hearing"):  # others ask `data_received`
            transport.stop_hearing()
        self.server.deadlines.watch(self, CLOSE_SECONDS_MAX, however=True)

    def use_transport(self, transport: Any) -> None:
        """From here on this one: what stood between us and it steps aside."""
        self.transport = transport

    def logged_in(self) -> Principal | None:
        """Who it is; None before its login."""
        return None

    def end_login(self) -> None:
        self.close(LOGIN_ENDED)

    def end_namespace(self, name: str) -> None:
        """The namespace it works in is removed."""
        self.close(f"namespace {name} was removed")

    def abort(self) -> None:
        """Drop the connection now, unsent bytes and all."""
        self.closing = True
        if self.transport is not None:
            self.transport.abort()

    def cut_off(self, reason: str) -> None:
        """It takes more than its share (`unfinished.py`)."""
        self.close(reason)

    def break_off(self) -> None:
        """In an `except`: something of ours failed on what it sent. Nothing more of it is read, nobody else is hurt."""
        logger.exception("%s: what it sent could not be handled; it is cut off", self.label())
        self.abort()

    def hold(self, reason: int) -> None:
        """Stop reading from the peer until every reason is released."""
        if not self.held and self.transport is not None and not self.closing:
            self.transport.pause_reading()
        self.held |= reason

    def release(self, reason: int) -> None:
        if not self.held & reason:
            return
        self.held &= ~reason
        if not self.held and self.transport is not None and not self.closing:
            self.transport.resume_reading()
            self.on_released()

    def wait_for_turn(self) -> None:
        """It has brought its share of this turn of the loop: what else it has is its next one's."""
        if not self.held & HOLD_TURN:
            self.hold(HOLD_TURN)
            self.server.turns.soon(self._turn_came, self.tenant)

    def _turn_came(self) -> None:
        self.release(HOLD_TURN)

    def hold_for_log(self) -> None:
        """More is unsynced than may be (`ticker.press`)."""
        self.hold(HOLD_LOG)

    def release_from_log(self) -> None:
        self.release(HOLD_LOG)

    def hold_for_delivery(self) -> None:
        """It brought much, and those who read it come first (`ticker.outrun`)."""
        self.hold(HOLD_DELIVERY)

    def release_from_delivery(self) -> None:
        self.release(HOLD_DELIVERY)

    def block_output(self, why: int) -> None:
        """Write nothing more until every reason is taken back."""
        before, self.blocked_by = self.blocked_by, self.blocked_by | why
        self.blocked = True
        if not before:
            self.on_blocked()

    def free_output(self, why: int) -> None:
        if self.blocked_by & why:
            self.blocked_by &= ~why
            self.blocked = bool(self.blocked_by)
            if not self.blocked and not self.closing:
                self.on_room()

    def label(self) -> str:
        """How the log names this peer."""
        peer = self.transport.get_extra_info("peername") if self.transport is not None else None
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else str(peer or "local peer")

    # What asyncio calls.

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        server = self.server
        counters = server.counters
        full = len(server.connections) >= server.connections_max
        if full or (server.admission is not None and not server.admission.admit(transport)):
            counters.refused_total += 1
            self.closing = True
            transport.abort()
            return
        server.connections.add(self)
        self.opened_second = server.deadlines.second
        counters.connections += 1
        counters.connections_total += 1
        counters.connections_maximum = max(counters.connections_maximum, counters.connections)
        self.limit_output(server.out_bytes_max)
        self.on_open()

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return  # said goodbye already; what it still sends is not ours to answer
        server = self.server
        self.heard_second = server.deadlines.second
        server.counters.bytes_in += len(data)
        server.ticker.loop_read = True
        if server.ticker.on_turn is not None:
            server.ticker.note_turn()
        self.on_data(data)
        if self.meter is not None:
            self.meter.read(len(data))
        if len(data) >= LOOP_READ_BYTES:
            self.wait_for_turn()

    def connection_lost(self, error: Exception | None) -> None:
        transport, self.transport = self.transport, None
        self.closing = True
        self.out = None
        server = self.server
        server.unsent.forget(self)
        server.unfinished.forget(self)
        server.deadlines.forget(self)
        server.expiries.forget(self)
        if self.metering.member is not None:
            self.metering.member.leave()
        if self in server.connections:
            if server.admission is not None:
                server.admission.leave(transport)
            server.connections.discard(self)
            server.counters.connections -= 1
            self.on_lost()

    def pause_writing(self) -> None:
        self.block_output(BLOCKED_BY_PEER)

    def resume_writing(self) -> None:
        self.free_output(BLOCKED_BY_PEER)

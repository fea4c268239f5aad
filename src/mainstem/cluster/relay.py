"""Any broker serves any client: bytes of a client at a broker that does not own its cell go to the one that does.

Each process that serves a cell listens on a relay port for the others. A relay has one connection to it for all its clients
(`trunk.py`), encrypted, and both sides show the cluster's own certificate (`certificate.py`). TLS of a client ends at the
broker it connected to; its certificate is told. A client waits at most OWNER_S for an owner, as during a failover.

Which cell a client belongs to only its login tells, and every cell can log it in. So a client goes to the cell that clients
of its address went to lately, else to cell 1, else to any that is served. That one keeps it or says where it belongs (MOVE),
with what it said: the relay takes it there.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

from mainstem.broker.namespaces.placement import AGAIN, Again
from mainstem.broker.rights.access import Principal
from mainstem.cluster.certificate import ALPN
from mainstem.cluster.membership import View
from mainstem.cluster.principals import of_document, to_document
from mainstem.cluster.schema import FIRST_CELL
from mainstem.cluster.trunk import HIGH_BYTES, REFUSED, TAKEN, Stream, Trunk

logger = logging.getLogger("mainstem.cluster")

HANDSHAKE_S = 5.0
OWNER_S, LOOK_S = 10.0, 0.1
CLIENTS_MAX = 20_000  # relayed at once
MOVES_MAX = 4  # of one client before it is settled: places change while it logs in, and not that often
LATELY_MAX = 10_000  # addresses whose cell is remembered
Address = tuple[str, int]

Find = Callable[[str, int], Any]  # a listener's server by the cell it is of, None where it is not ours to serve
Ready = Callable[[Principal, str], Awaitable[None]]  # whoever comes, and the namespace that is asked about, "" if any
Opening = Callable[[int], asyncio.Event | None]  # of a cell that is ours and does not serve yet: set when it does


async def at_once(principal: Principal, namespace: str) -> None:
    """Everything is known of whoever comes."""


class RelayDoor(Trunk):
    """The owner's side: each stream becomes a connection of the listener it names. Clients that come before the cell serves
    wait for it."""

    def __init__(self, find: Find, ready: Ready = at_once, opening: Opening = lambda cell: None) -> None:
        """`ready` is awaited before a client is heard that another cell let in."""
        super().__init__(self._take)
        self._find, self._ready, self._opening = find, ready, opening
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if _protocol_of(transport) != ALPN:
            self.break_off("it speaks another version")

    def _take(self, stream: Stream, payload: bytes) -> None:
        hello = json.loads(payload)
        opening = self._opening(int(hello.get("cell", FIRST_CELL)))
        if opening is None:
            self._answer(stream, hello)
        else:
            self._run(self._answer_when_open(stream, hello, opening))

    async def _answer_when_open(self, stream: Stream, hello: dict[str, Any], opening: asyncio.Event) -> None:
        await opening.wait()
        if not stream.is_closing():
            self._answer(stream, hello)

    def _answer(self, stream: Stream, hello: dict[str, Any]) -> None:
        server = self._find(str(hello["listener"]), int(hello.get("cell", FIRST_CELL)))
        if server is None:
            self.send(REFUSED, stream.number)
            stream.end(None)
            return
        host, port = hello["peer"]
        again = hello.get("again")
        stream.moves = bool(hello.get("moves"))
        stream.facts = {
            "peername": (str(host), int(port)),
            "ssl_object": stream
            if hello["tls"]
            else None,  # it ends at the relay: all that is asked is whether there is one
            "peercert": _as_tuples(hello["certificate"]),
            AGAIN: Again(of_document(again)) if again is not None else None,
        }
        self.send(TAKEN, stream.number)
        if again is None:
            _begin(server, stream)
        else:
            self._run(self._begin_when_ready(server, stream, again, str(hello.get("namespace", ""))))

    def _run(self, waiting: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(waiting)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin_when_ready(self, server: Any, stream: Stream, again: dict[str, Any], namespace: str) -> None:
        await self._ready(of_document(again), namespace)
        if not stream.is_closing():
            _begin(server, stream)


def _begin(server: Any, stream: Stream) -> None:
    connection = server.make_connection()
    stream.set_protocol(connection)
    connection.connection_made(stream)


def _protocol_of(transport: Any) -> str | None:
    opened = transport.get_extra_info("ssl_object")
    return opened.selected_alpn_protocol() if opened is not None else None


def _as_tuples(value: Any) -> Any:
    """A certificate as `ssl` tells it, which JSON made lists of."""
    if isinstance(value, dict):
        return {name: _as_tuples(one) for name, one in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


class _Half(asyncio.Protocol):
    """One of two transports whose bytes go to the other."""

    # As a line of the reactor knows a connection, where a client came in by one.
    meter = None
    closing = False
    heard_second = 0

    def __init__(self, transport: Any = None) -> None:
        self.transport = transport
        self.other: _Half | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def on_data(self, data: bytes) -> None:
        self.data_received(data)

    def eof_received(self) -> bool:
        if self.other is not None and self.other.transport.can_write_eof():
            self.other.transport.write_eof()
            return True
        return False

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def note_unsent(self) -> None:
        """A line's word that bytes wait; `pause_writing` bounds them."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()

    def join(self, other: _Half) -> None:
        self.other, other.other = other, self


class _Owner(_Half):
    """The side of the process that serves the client; from a MOVE on what it sends back is for the next one."""

    def __init__(self, client: _Client, stream: Stream) -> None:
        super().__init__(stream)
        self._client = client
        self._back: bytearray | None = None
        self._where = b""

    def data_received(self, data: bytes) -> None:
        if self._back is not None:
            self._back += data
        else:
            super().data_received(data)

    def moved(self, where: bytes) -> None:
        self._where, self._back = where, bytearray()
        self.other = None
        self._client.leave_owner()
        self.transport.write_eof()

    def eof_received(self) -> bool:
        return True if self._back is not None else super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._back is None:
            super().connection_lost(exc)
        else:
            where = json.loads(self._where)
            self._client.go_to(int(where["cell"]), where["again"], bytes(self._back))


class _Client(_Half):
    """The client's side. Until an owner takes it, at most one read of it is kept."""

    def __init__(self, relay: Relay, listener: str) -> None:
        super().__init__()
        self._relay, self._listener = relay, listener
        self._task: asyncio.Task[None] | None = None
        self._early = b""
        self._eof = False
        self._moves = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._enter():
            self._task = asyncio.get_running_loop().create_task(self._begin(None, None))

    def adopt(self, transport: Any, cell: int, again: dict[str, Any], said: bytes) -> None:
        """A client that arrived at this very process, and is another cell's."""
        self.transport, self._early = transport, said
        transport.set_write_buffer_limits(high=HIGH_BYTES)
        if self._enter():
            transport.set_protocol(self)
            self._task = asyncio.get_running_loop().create_task(self._begin(cell, again))

    def _enter(self) -> bool:
        if len(self._relay.clients) >= CLIENTS_MAX:
            self.transport.abort()
            return False
        self._relay.clients.add(self)
        return True

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early += data
            self.transport.pause_reading()
        else:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        if self.other is None:
            self._eof = True
            return True
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.clients.discard(self)
        if self._task is not None:
            self._task.cancel()
        super().connection_lost(exc)

    def leave_owner(self) -> None:
        """The one that has it gives it back."""
        self.other = None
        self.transport.pause_reading()

    def go_to(self, cell: int, again: dict[str, Any], said: bytes) -> None:
        self._moves += 1
        if self.transport.is_closing() or self._moves > MOVES_MAX:
            self.transport.abort()
            return
        self._early = said + self._early
        self._task = asyncio.get_running_loop().create_task(self._begin(cell, again))

    async def _begin(self, cell: int | None, again: dict[str, Any] | None) -> None:
        try:
            async with asyncio.timeout(OWNER_S):
                stream = await self._relay.reach(_hello(self._listener, self.transport), cell, again)
        except (TimeoutError, OSError):
            self.transport.abort()
            return
        owner = _Owner(self, stream)
        self.join(owner)
        if self._early:
            stream.write(self._early)
            self._early = b""
        if self._eof:
            stream.write_eof()
        self.transport.resume_reading()
        stream.set_protocol(owner)


class Relay:
    """`view()` is the cluster as far as we know."""

    def __init__(self, tls: ssl.SSLContext, view: Callable[[], View]) -> None:
        self._tls, self._view = tls, view
        self._trunks: dict[Address, Trunk] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}
        self._lately: dict[tuple[str, str], int] = {}
        self.clients: set[_Client] = set()
        self.relayed_total = 0
        self._changed = asyncio.Event()

    def look_again(self) -> None:
        """The cluster is not as it was: whoever waits for an owner need not wait longer. In the loop."""
        self._changed.set()
        self._changed = asyncio.Event()

    def connection_for(self, listener: str) -> Callable[[], asyncio.Protocol]:
        return lambda: _Client(self, listener)

    def forward(self, transport: Any, listener: str, cell: int, principal: Principal, said: bytes) -> None:
        """A client of ours that is another cell's: by the relay that it came from, if it did and that can, else by us."""
        again = to_document(principal)
        if isinstance(transport, Stream) and transport.moves:
            transport.hand_back(json.dumps({"cell": cell, "again": again}).encode(), said)
        else:
            _Client(self, listener).adopt(transport, cell, again, said)

    async def reach(
        self, hello: dict[str, Any], cell: int | None = None, again: dict[str, Any] | None = None
    ) -> Stream:
        """A stream to an owner that took it, of this cell or of any; looks again while there is none."""
        key = str(hello["listener"]), str(hello["peer"][0])
        while True:
            changed = self._changed
            for candidate in (cell,) if cell is not None else self._candidates(key):
                stream = await self._open({**hello, "cell": candidate, "again": again}, candidate)
                if stream is not None:
                    self.relayed_total += 1
                    if cell is not None:
                        self._remember(key, cell)
                    return stream
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await changed.wait()

    def _remember(self, key: tuple[str, str], cell: int) -> None:
        if len(self._lately) >= LATELY_MAX:
            self._lately.clear()
        self._lately[key] = cell

    def _candidates(self, key: tuple[str, str]) -> Iterator[int]:
        """Cells that could log a client in, the likeliest first."""
        cells = self._view().cells
        yield from dict.fromkeys(one for one in (self._lately.get(key), FIRST_CELL, *cells) if one in cells)

    async def _open(self, hello: dict[str, Any], cell: int) -> Stream | None:
        address = self._view().address_of(cell)
        trunk = await self._trunk_to(address) if address is not None else None
        if trunk is None or trunk.lost:
            return None
        stream = trunk.open(json.dumps(hello).encode())
        try:
            return stream if await stream.taken else None
        except BaseException:
            stream.abort()
            raise

    async def _trunk_to(self, place: Address) -> Trunk | None:
        """The one connection there, made where there is none; None if that fails."""
        self._leave_old()
        async with self._connecting.setdefault(place, asyncio.Lock()):
            trunk = self._trunks.get(place)
            if trunk is None or trunk.lost:
                try:
                    async with asyncio.timeout(HANDSHAKE_S):
                        loop = asyncio.get_running_loop()
                        _, trunk = await loop.create_connection(Trunk, *place, ssl=self._tls, server_hostname="")
                except (OSError, TimeoutError):  # ssl's errors are OSErrors
                    return None
                self._trunks[place] = trunk
            return trunk

    def _leave_old(self) -> None:
        """Of owners before, clients end: they are to find the next one."""
        view = self._view()
        served = {view.address_of(cell) for cell in view.cells}
        for place in [one for one, trunk in self._trunks.items() if one not in served or trunk.lost]:
            self._trunks.pop(place).close()
            self._connecting.pop(place, None)

    def close_all(self) -> None:
        for client in list(self.clients):
            client.transport.close()
        for trunk in self._trunks.values():
            trunk.close()


def _hello(listener: str, client: Any) -> dict[str, Any]:
    peer, certificate = client.get_extra_info("peername"), client.get_extra_info("peercert")
    return {
        "listener": listener,
        "peer": list(peer[:2]) if isinstance(peer, tuple) else ["", 0],
        "tls": client.get_extra_info("ssl_object") is not None,
        "certificate": certificate or None,
        "moves": True,
    }

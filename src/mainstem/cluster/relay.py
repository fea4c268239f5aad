"""Any broker serves any client: bytes of a client at a broker that does not own the cell go to the one that does.

Each broker listens on a relay port for the others. A relay has one connection to the owner for all its clients (`trunk.py`),
encrypted, and both sides show the cluster's own certificate (`certificate.py`). TLS of a client ends at the broker it
connected to; its certificate is told. A client waits at most OWNER_S for an owner, as during a failover.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable
from typing import Any

from mainstem.cluster.certificate import ALPN
from mainstem.cluster.membership import BrokerFacts
from mainstem.cluster.trunk import HIGH_BYTES, REFUSED, TAKEN, Stream, Trunk

logger = logging.getLogger("mainstem.cluster")

HANDSHAKE_S = 5.0
OWNER_S, LOOK_S = 10.0, 0.1
CLIENTS_MAX = 20_000  # relayed at once

Find = Callable[[str], Any]  # a listener's server, None where it is not ours to serve


class RelayDoor(Trunk):
    """The owner's side: each stream becomes a connection of the listener it names."""

    def __init__(self, find: Find) -> None:
        super().__init__(self._take)
        self._find = find

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if _protocol_of(transport) != ALPN:
            self.break_off("it speaks another version")

    def _take(self, stream: Stream, payload: bytes) -> None:
        hello = json.loads(payload)
        server = self._find(str(hello["listener"]))
        if server is None:
            self.send(REFUSED, stream.number)
            stream.end(None)
            return
        host, port = hello["peer"]
        stream.facts = {
            "peername": (str(host), int(port)),
            "ssl_object": stream
            if hello["tls"]
            else None,  # it ends at the relay: all that is asked is whether there is one
            "peercert": _as_tuples(hello["certificate"]),
        }
        self.send(TAKEN, stream.number)
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

    def __init__(self, transport: Any = None) -> None:
        self.transport = transport
        self.other: _Half | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

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

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()

    def join(self, other: _Half) -> None:
        self.other, other.other = other, self


class _Client(_Half):
    """The client's side. Until the owner takes it, at most one read of it is kept."""

    def __init__(self, relay: Relay, listener: str) -> None:
        super().__init__()
        self._relay, self._listener = relay, listener
        self._task: asyncio.Task[None] | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self._relay.clients) >= CLIENTS_MAX:
            self.transport.abort()
            return
        self._relay.clients.add(self)
        self._task = asyncio.get_running_loop().create_task(self._begin())

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early += data
            self.transport.pause_reading()
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.clients.discard(self)
        if self._task is not None:
            self._task.cancel()
        super().connection_lost(exc)

    async def _begin(self) -> None:
        try:
            async with asyncio.timeout(OWNER_S):
                stream = await self._relay.reach(self._listener, self.transport)
        except (TimeoutError, OSError):
            self.transport.abort()
            return
        owner = _Half(stream)
        self.join(owner)
        if self._early:
            stream.write(self._early)
            self._early = b""
            self.transport.resume_reading()
        stream.set_protocol(owner)


class Relay:
    """`owner()` is who owns the cell as far as we know."""

    def __init__(self, tls: ssl.SSLContext, owner: Callable[[], BrokerFacts | None]) -> None:
        self._tls, self._owner = tls, owner
        self._trunk: Trunk | None = None
        self._to: tuple[str, int] | None = None
        self._connecting = asyncio.Lock()
        self.clients: set[_Client] = set()
        self.relayed_total = 0

    def connection_for(self, listener: str) -> Callable[[], asyncio.Protocol]:
        return lambda: _Client(self, listener)

    async def reach(self, listener: str, client: Any) -> Stream:
        """A stream to the owner that took it; looks again while there is none."""
        hello = _hello(listener, client)
        while True:
            owner = self._owner()
            trunk = await self._trunk_to(owner) if owner is not None else None
            if trunk is not None and not trunk.lost:
                stream = trunk.open(hello)
                try:
                    if await stream.taken:
                        self.relayed_total += 1
                        return stream
                except BaseException:
                    stream.abort()
                    raise
            await asyncio.sleep(LOOK_S)

    async def _trunk_to(self, owner: BrokerFacts) -> Trunk | None:
        """The one connection there, made where there is none; None if that fails. Of an owner before, its clients end."""
        place = owner.host, owner.relay_port
        async with self._connecting:
            if self._trunk is not None and (self._trunk.lost or self._to != place):
                self._trunk.close()
                self._trunk = None
            if self._trunk is None:
                try:
                    async with asyncio.timeout(HANDSHAKE_S):
                        loop = asyncio.get_running_loop()
                        _, self._trunk = await loop.create_connection(Trunk, *place, ssl=self._tls, server_hostname="")
                except (OSError, TimeoutError):  # ssl's errors are OSErrors
                    return None
                self._to = place
            return self._trunk

    def close_all(self) -> None:
        for client in list(self.clients):
            client.transport.close()
        if self._trunk is not None:
            self._trunk.close()


def _hello(listener: str, client: Any) -> bytes:
    peer, certificate = client.get_extra_info("peername"), client.get_extra_info("peercert")
    facts = {
        "listener": listener,
        "peer": list(peer[:2]) if isinstance(peer, tuple) else ["", 0],
        "tls": client.get_extra_info("ssl_object") is not None,
        "certificate": certificate or None,
    }
    return json.dumps(facts).encode()

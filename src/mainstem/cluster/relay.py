"""Any broker serves any client: bytes of a client at a broker that does not own the cell go to the one that does.

Each broker listens on a relay port for the others. One connection there is one client's; both sides know the cluster's
secret, which lies in PostgreSQL:

    owner → relay   "MSRELAY1", 32 random bytes
    relay → owner   u16 length, JSON {"listener", "peer": [host, port], "tls", "nonce"}, HMAC-SHA256 of the random bytes
                    and the JSON
    owner → relay   "+" and HMAC-SHA256 of the nonce: from here on the client's bytes, both ways.
                    "-": not the owner, or not that listener

The bytes are authenticated where they begin, and not encrypted on the way: brokers belong in one private network. TLS of a
client ends at the broker it connected to. A side that is slow holds the other back (`pause_reading`); a client waits at most
OWNER_S for an owner, as during a failover.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
from collections.abc import Callable
from typing import Any

from mainstem.cluster.membership import BrokerFacts

logger = logging.getLogger("mainstem.cluster")

MAGIC = b"MSRELAY1"
NONCE_BYTES, SIGN_BYTES = 32, 32
HELLO_BYTES_MAX = 4096
HANDSHAKE_S = 5.0
OWNER_S, LOOK_S = 10.0, 0.1
CLIENTS_MAX = 20_000  # relayed at once
BUFFER_BYTES = 256 << 10

Find = Callable[[str], Any]  # a listener's server, None where it is not ours to serve


def _sign(secret: bytes, *parts: bytes) -> bytes:
    return hmac.digest(secret, b"".join(parts), "sha256")


class RelayedTransport:
    """The transport to a relay, which tells the client's address; all else is the transport's own."""

    def __init__(self, transport: Any, peer: tuple[str, int], *, tls: bool) -> None:
        self._transport, self._peer, self._tls = transport, peer, tls

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self._peer
        if name == "ssl_object" and self._tls:
            return self  # it ends at the relay: all that is asked is whether the client uses it
        return self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class RelayDoor(asyncio.Protocol):
    """The owner's side, until the hello is checked: then the listener's own connection takes the transport over."""

    def __init__(self, secret: bytes, find: Find) -> None:
        self._secret, self._find = secret, find
        self._challenge = os.urandom(NONCE_BYTES)
        self._got = bytearray()
        self._transport: Any = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(MAGIC + self._challenge)
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def data_received(self, data: bytes) -> None:
        self._got += data
        size = int.from_bytes(self._got[:2], "big")
        whole = 2 + size + SIGN_BYTES
        if len(self._got) >= 2 and (size > HELLO_BYTES_MAX or len(self._got) > whole):
            self._transport.abort()
        elif len(self._got) >= 2 and len(self._got) == whole:
            self._hear(bytes(self._got[2 : 2 + size]), bytes(self._got[2 + size :]))

    def _hear(self, told: bytes, sign: bytes) -> None:
        if not hmac.compare_digest(sign, _sign(self._secret, self._challenge, told)):
            logger.warning("a connection to the relay port does not know the cluster's secret")
            self._transport.abort()
            return
        hello = json.loads(told)
        server = self._find(str(hello["listener"]))
        if server is None:
            self._transport.write(b"-")
            self._transport.close()
            return
        assert self._deadline is not None
        self._deadline.cancel()
        connection = server.make_connection()
        self._transport.set_protocol(connection)
        self._transport.write(b"+" + _sign(self._secret, bytes.fromhex(hello["nonce"])))
        host, port = hello["peer"]
        connection.connection_made(RelayedTransport(self._transport, (str(host), int(port)), tls=bool(hello["tls"])))


class _Half(asyncio.Protocol):
    """One of two transports whose bytes go to the other."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.other: _Half | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES)

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
                owner = await self._relay.reach(self._listener, self.transport)
        except (TimeoutError, OSError):
            self.transport.abort()
            return
        self.join(owner)
        if self._early:
            owner.transport.write(self._early)
            self._early = b""
            self.transport.resume_reading()
        owner.release()


class _Owner(_Half):
    """The way to the owner: `taken` is decided by its answer."""

    def __init__(self, secret: bytes, listener: str, client: Any) -> None:
        super().__init__()
        self._secret, self._listener, self._client = secret, listener, client
        self._nonce = os.urandom(NONCE_BYTES)
        self._got, self._asked = bytearray(), False
        self.taken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self._got += data
        if self.taken.done():
            return  # the client's already: it is told in `release`
        if not self._asked and len(self._got) >= len(MAGIC) + NONCE_BYTES:
            self._ask(bytes(self._got[len(MAGIC) : len(MAGIC) + NONCE_BYTES]))
            del self._got[: len(MAGIC) + NONCE_BYTES]
        if self._asked and self._got[:1] == b"-":
            self._decide(False)
        elif self._asked and len(self._got) > SIGN_BYTES:
            sign = bytes(self._got[1 : 1 + SIGN_BYTES])
            del self._got[: 1 + SIGN_BYTES]
            self._decide(hmac.compare_digest(sign, _sign(self._secret, self._nonce)))

    def _ask(self, challenge: bytes) -> None:
        peer, tls = self._client.get_extra_info("peername"), self._client.get_extra_info("ssl_object") is not None
        facts = {"listener": self._listener, "peer": list(peer[:2]) if isinstance(peer, tuple) else ["", 0], "tls": tls}
        told = json.dumps({**facts, "nonce": self._nonce.hex()}).encode()
        self.transport.write(len(told).to_bytes(2, "big") + told + _sign(self._secret, challenge, told))
        self._asked = True

    def _decide(self, taken: bool) -> None:
        if not self.taken.done():
            self.taken.set_result(taken)

    def release(self) -> None:
        """What the owner said before both ends were joined."""
        if self._got and self.other is not None:
            self.other.transport.write(bytes(self._got))
        self._got.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self._decide(False)
        super().connection_lost(exc)


class Relay:
    """`owner()` is who owns the cell as far as we know."""

    def __init__(self, secret: bytes, owner: Callable[[], BrokerFacts | None]) -> None:
        self._secret, self._owner = secret, owner
        self.clients: set[_Client] = set()
        self.relayed_total = 0

    def connection_for(self, listener: str) -> Callable[[], asyncio.Protocol]:
        return lambda: _Client(self, listener)

    async def reach(self, listener: str, client: Any) -> _Owner:
        """A way to the owner that took it; looks again while there is none."""
        loop = asyncio.get_running_loop()
        while True:
            owner = self._owner()
            if owner is not None:
                try:
                    _, half = await loop.create_connection(
                        lambda: _Owner(self._secret, listener, client), owner.host, owner.relay_port
                    )
                except OSError:
                    pass
                else:
                    try:
                        if await half.taken:
                            self.relayed_total += 1
                            return half
                    except BaseException:
                        half.transport.abort()
                        raise
                    half.transport.abort()
            await asyncio.sleep(LOOK_S)

    def close_all(self) -> None:
        for client in list(self.clients):
            client.transport.close()

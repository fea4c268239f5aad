"""TLS that begins inside a plain connection: `UpgradedTransport` stands between a transport and a Connection.

As NATS has it: both sides speak plainly until one of them begins a handshake. (A listener with TLS from the first byte on
needs none of this: its connections are the event loop's.) What the connection writes before the handshake is done waits.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Any

from mainstem.protocols.connection import Connection
from mainstem.protocols.transport_layer import TransportLayer

logger = logging.getLogger("mainstem.connection")

HANDSHAKE = 0x16  # the first byte of a TLS connection
READ_BYTES = 64 * 1024


class UpgradedTransport(TransportLayer):
    """Speaks TLS to the peer and bytes to `connection`: the one's protocol, the other's transport."""

    __slots__ = ("_held", "_in", "_on_done", "_out", "_ssl", "_tls_done")

    _above: Connection

    def __init__(self, connection: Connection, context: ssl.SSLContext, on_done: Callable[[], None]) -> None:
        """From here on; `on_done` is called when the handshake is."""
        super().__init__(connection, connection.transport)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._in, self._out, server_side=True)
        self._tls_done = False
        self._on_done = on_done
        self._held: list[bytes] = []
        self._below.set_protocol(self)
        connection.transport = self

    def use_transport(self, transport: Any) -> None:
        self._below = transport

    # -- what the transport below calls

    @property
    def meter(self) -> Any:
        return self._above.meter

    @property
    def heard_second(self) -> int:
        return self._above.heard_second

    @heard_second.setter
    def heard_second(self, second: int) -> None:
        self._above.heard_second = second

    def data_received(self, data: bytes) -> None:
        self._above.heard_second = self._above.server.deadlines.second
        self.on_data(data)

    def on_data(self, data: bytes) -> None:
        connection = self._above
        if connection.closing:
            return
        self._in.write(data)
        try:
            if not self._tls_done:
                self._shake_hands()
            while not connection.closing:
                plain = self._ssl.read(READ_BYTES)
                if not plain:
                    raise ssl.SSLZeroReturnError
                connection.on_data(plain)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            connection.close()
        except ssl.SSLError as error:
            logger.info("%s: TLS failed: %s", connection.label(), error.reason or error)
            connection.abort()
        self._send()

    def _shake_hands(self) -> None:
        self._ssl.do_handshake()
        self._tls_done = True
        held, self._held = self._held, []
        for data in held:
            self._ssl.write(data)
        self._on_done()

    def _send(self) -> None:
        if self._out.pending and self._below is not None:
            self._below.write(self._out.read())

    def note_unsent(self) -> None:
        self._above.note_unsent()

    # -- the transport that the connection sees

    def write(self, data: bytes) -> None:
        if not self._tls_done:
            self._held.append(data)
        elif data:
            self._ssl.write(data)
            self._send()

    def can_write_eof(self) -> bool:
        return True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._ssl
        if name == "peercert":
            return self._ssl.getpeercert() if self._tls_done else None
        return super().get_extra_info(name, default)

    def set_tenant(self, tenant: str) -> None:
        if hasattr(self._below, "set_tenant"):
            self._below.set_tenant(tenant)

"""A WebSocket as a byte stream: `WebSocketProtocol` stands between a transport and any Connection.

Frames and packets do not align: what arrives in binary frames is handed on as it comes, what the connection writes in one
tick leaves as one binary frame. Text frames close the socket, on MQTT's path. A path of another protocol's (`others`) makes
a connection of its own, once the request names it. Masking, fragments, ping and the closing handshake are done by
the `websockets` library's protocol without I/O.

Any web page can open `ws://127.0.0.1:...`, or point a name of its own at it. So the Host header must name a loopback or
configured host, and an Origin, which only browsers send, must be one of ours or a configured one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from mainstem.protocols.connection import OUT_BYTES_MAX, Connection

logger = logging.getLogger("mainstem.connection")

FRAME_BYTES_MAX = 16 * 1024 * 1024
HANDSHAKE_BYTES_MAX = 16 * 1024
CLOSE_UNSUPPORTED = 1003


@dataclass(frozen=True, slots=True)
class WebSocketRules:
    """Where and for whom the door is open."""

    path: str
    subprotocols: tuple[str, ...]
    hosts: tuple[str, ...] = ()  # beyond loopback
    origins: tuple[str, ...] = ()  # beyond the hosts'
    frame_bytes_max: int = FRAME_BYTES_MAX
    others: dict[str, Callable[[], Connection]] = field(default_factory=dict)  # path → makes a connection

    def refusal(self, path: str, host: str | None, origin: str | None) -> str | None:
        """Why this request is refused; None if it is not."""
        if path != self.path and path not in self.others:
            return f"there is nothing at {path[:100]}; try {' or '.join((self.path, *self.others))}"
        if not self._is_our_host(urlsplit(f"//{host or ''}").hostname):
            return f"the Host {host!r} is not one this broker answers to (http.hosts)"
        if origin is not None and origin not in self.origins:
            parts = urlsplit(origin)
            if parts.scheme not in ("http", "https") or not self._is_our_host(parts.hostname):
                return f"web pages of {origin} may not connect (mqtt.ws_origins)"
        return None

    def _is_our_host(self, name: str | None) -> bool:
        if not name:
            return False
        if name == "localhost" or name in self.hosts:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


class WebSocketProtocol(asyncio.Protocol):
    """Speaks WebSocket to the peer and bytes to `connection`, for which it is the transport."""

    __slots__ = ("_connection", "_is_other", "_make", "_open", "_protocol", "_rules", "_transport")

    def __init__(self, make_connection: Callable[[], Connection], rules: WebSocketRules) -> None:
        self._make = make_connection
        self._rules = rules
        self._transport: Any = None
        self._connection: Connection | None = None
        self._open = False
        self._is_other = False
        self._protocol = ServerProtocol(subprotocols=list(rules.subprotocols), max_size=rules.frame_bytes_max)  # type: ignore[arg-type]

    def use_transport(self, transport: Any) -> None:
        self._transport = transport

    # -- what asyncio calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._connection = self._make()
        self._connection.connection_made(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._take(data)
        except Exception:
            if self._connection is not None:
                self._connection.break_off()
            self.abort()

    def _take(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._shake_hands(event)
            elif isinstance(event, Frame):
                self._receive(event)
        self._send_pending()

    def eof_received(self) -> bool | None:
        self._protocol.receive_eof()
        return None

    def connection_lost(self, error: Exception | None) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.connection_lost(error)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.resume_writing()

    # -- frames

    def _shake_hands(self, request: Request) -> None:
        if self._protocol.eof_sent:  # what came with the request, before our answer to it, was no frame
            return
        headers = request.headers
        path = urlsplit(request.path).path
        refusal = self._rules.refusal(path, headers.get("Host"), headers.get("Origin"))
        if refusal is not None:
            logger.info("WebSocket refused: %s", refusal)
            response = self._protocol.reject(403, refusal + "\n")
        else:
            if path in self._rules.others:
                self._protocol.available_subprotocols = None  # they are MQTT's
            response = self._protocol.accept(request)
        self._protocol.send_response(response)
        self._open = self._protocol.state is State.OPEN
        if self._open and path in self._rules.others:
            self._change_connection(self._rules.others[path]())

    def _change_connection(self, connection: Connection) -> None:
        """Of another protocol: it takes the place of the one that was counted until now."""
        self._send_pending()
        self._is_other = True
        before, self._connection = self._connection, connection
        if before is not None:
            before.connection_lost(None)
        connection.connection_made(self)

    def _receive(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT and not self._is_other:
            self._protocol.fail(CLOSE_UNSUPPORTED, "only binary frames carry MQTT")
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT, Opcode.TEXT) and frame.data and self._connection is not None:
            self._connection.data_received(bytes(frame.data))

    def _send_pending(self) -> None:
        pieces = self._protocol.data_to_send()
        if self._transport is None:
            return
        for piece in pieces:
            if piece:
                self._transport.write(piece)
            else:
                self._transport.close()
        if self._protocol.close_expected():
            self._transport.close()

    # -- the transport that the connection sees

    def write(self, data: bytes) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(data)
            self._send_pending()

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._send_pending()
        if self._transport is not None:
            self._transport.close()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """The closing handshake ends our side; the peer's answer, or its silence, ends the socket."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._send_pending()
        elif self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def get_extra_info(self, name: str) -> Any:
        return self._transport.get_extra_info(name) if self._transport is not None else None

    def get_write_buffer_size(self) -> int:
        return int(self._transport.get_write_buffer_size()) if self._transport is not None else 0

    def set_write_buffer_limits(self, high: int = OUT_BYTES_MAX, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high=high, low=low)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def is_closing(self) -> bool:
        return self._transport is None or bool(self._transport.is_closing())

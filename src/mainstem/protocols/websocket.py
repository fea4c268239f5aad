"""A WebSocket as a byte stream: `WebSocketProtocol` stands between a transport and any Connection.

Frames and packets do not align: what arrives in binary frames is handed on as it comes, large frames in pieces
(`websocket_pieces.py`); what the connection writes in one tick leaves as one binary frame. A read that takes longer than a
slice, of thousands of tiny frames, waits for its next turn. Text frames close the socket, on MQTT's path. A path of another
protocol's (`others`) makes a connection of its own, once the request names it. Masking, fragments, ping and the closing
handshake are done by the `websockets` library's protocol without I/O.

Any web page can open `ws://127.0.0.1:...`, or point a name of its own at it. So the Host header must name a loopback or
configured host, and an Origin, which only browsers send, must be one of ours or a configured one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from mainstem.broker.delivery.turns import SLICE_NS
from mainstem.protocols.connection import LOOP_READ_BYTES, OUT_BYTES_MAX, Connection
from mainstem.protocols.websocket_pieces import PIECE_BYTES, Pieces

logger = logging.getLogger("mainstem.connection")

FRAME_BYTES_MAX = 16 * 1024 * 1024
HANDSHAKE_BYTES_MAX = 16 * 1024
CLOSE_UNSUPPORTED = 1003
PORTION_BYTES = 4096  # handled between two looks at the clock: several hundred frames, if they are tiny


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
        if not self._is_our_host(_split(f"//{host or ''}").hostname):
            return f"the Host {host!r} is not one this broker answers to (http.hosts)"
        if origin is not None and origin not in self.origins:
            parts = _split(origin)
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


def _split(url: str) -> SplitResult:
    """What a client says; all empty where it is no URL."""
    try:
        return urlsplit(url)
    except ValueError:  # half an IPv6 address
        return urlsplit("")


class WebSocketProtocol(asyncio.Protocol):
    """Speaks WebSocket to the peer and bytes to `connection`, for which it is the transport."""

    __slots__ = (
        "_connection",
        "_is_other",
        "_make",
        "_open",
        "_paused",
        "_pieces",
        "_planned",
        "_protocol",
        "_rules",
        "_transport",
        "_unread",
    )

    def __init__(self, make_connection: Callable[[], Connection], rules: WebSocketRules) -> None:
        self._make = make_connection
        self._rules = rules
        self._transport: Any = None
        self._connection: Connection | None = None
        self._open = False
        self._is_other = False
        self._pieces: Pieces | None = None  # once there are frames
        self._unread = b""  # came, and waits for its turn
        self._planned = False  # its turn is asked for
        self._paused = False  # the connection wants nothing for now
        self._protocol = ServerProtocol(subprotocols=list(rules.subprotocols), max_size=rules.frame_bytes_max)  # type: ignore[arg-type]

    def use_transport(self, transport: Any) -> None:
        self._transport = transport

    # -- what asyncio calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._connection = self._make()
        self._connection.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._unread or self._paused:  # reading stopped, and this was on its way
            self._unread += data
            return
        try:
            self._take_slice(data)
            if len(data) >= LOOP_READ_BYTES and self._connection is not None:
                self._connection.wait_for_turn()
        except Exception:
            self._break_off()

    def _take_slice(self, data: bytes) -> None:
        """As much of it as a slice has room for; the rest keeps."""
        until_ns, at = time.monotonic_ns() + SLICE_NS, 0
        while at < len(data):
            if self._pieces is None:  # the request, line by line: frames may follow it at once
                size = (data.find(b"\n", at) + 1 or len(data)) - at
            else:
                size = min(max(self._pieces.inside, PORTION_BYTES), PIECE_BYTES)
            self._take(data[at : at + size])
            at += size
            if at < len(data) and (self._paused or time.monotonic_ns() >= until_ns):
                self._unread = data[at:]
                self._plan()
                return

    def _plan(self) -> None:
        if not self._planned and not self._paused and self._connection is not None:
            self._planned = True
            self._transport.pause_reading()
            self._connection.server.turns.soon(self._go_on, self._connection.tenant)

    def _go_on(self) -> None:
        self._planned = False
        if self._paused or self._connection is None:
            return
        data, self._unread = self._unread, b""
        try:
            self._take_slice(data)
        except Exception:
            self._break_off()
        if not self._unread and not self._paused and not self.is_closing():
            self._transport.resume_reading()

    def _break_off(self) -> None:
        if self._connection is not None:
            self._connection.break_off()
        self.abort()

    def _take(self, data: bytes) -> None:
        self._protocol.receive_data(self._pieces.feed(data) if self._pieces is not None else data)
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
        self._unread = b""
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
        path = _split(request.path).path
        hosts, origins = headers.get_all("Host"), headers.get_all("Origin")
        if len(hosts) > 1 or len(origins) > 1:
            refusal: str | None = "the request says its Host or Origin twice"
        else:
            refusal = self._rules.refusal(path, next(iter(hosts), None), next(iter(origins), None))
        if refusal is not None:
            logger.info("WebSocket refused: %s", refusal)
            response = self._protocol.reject(403, refusal + "\n")
        else:
            if path in self._rules.others:
                self._protocol.available_subprotocols = None  # they are MQTT's
            response = self._protocol.accept(request)
        self._protocol.send_response(response)
        self._open = self._protocol.state is State.OPEN
        self._pieces = Pieces(self._rules.frame_bytes_max)
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
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._unread:
            self._plan()
        elif not self._planned:
            self._transport.resume_reading()

    def is_closing(self) -> bool:
        return self._transport is None or bool(self._transport.is_closing())

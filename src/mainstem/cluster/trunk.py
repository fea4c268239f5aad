"""One connection between two brokers that carries many clients: frames, and a window for each client.

    u32 length of the rest, u8 kind, u32 stream, payload (big-endian)

    OPEN     relay → owner   JSON {"listener", "peer": [host, port], "tls", "certificate", "cell", "moves", "again"}:
                             a client; the relay numbers them
    TAKEN    owner → relay   it is the owner's from here on
    REFUSED  owner → relay   not the owner, or not that listener: the stream is over
    DATA     both            bytes of the client or for it, at most FRAME_BYTES
    GRANT    both            u32: so many bytes of the other's DATA were used; WINDOW_BYTES may be under way unused
    EOF      both            no more DATA follows
    CLOSE    both            the stream is over
    MOVE     owner → relay   JSON {"cell", "again"}: the client is another cell's. DATA that follows is what it said, and
                             what the relay sent meanwhile comes back, until the relay's EOF is answered by CLOSE. Only
                             to a relay whose OPEN says "moves"

A client that is slow uses up its own window and holds nobody else back. The window bounds what a broker keeps for it.
Frames of one turn of the loop go out as one write. The connection is TLS of both sides (`certificate.py`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

logger = logging.getLogger("mainstem.cluster")

HEAD = struct.Struct(">IBI")
HEAD_REST = HEAD.size - 4  # what the length counts beside the payload
OPEN, TAKEN, REFUSED, DATA, GRANT, EOF, CLOSE, MOVE = range(1, 9)
FRAME_BYTES = 64 << 10
WINDOW_BYTES = 512 << 10
TRUNK_BYTES = 4 << 20  # unsent, beyond which streams keep what they have to say
_LIVENESS = (  # a broker that a cut cable hides is given up after about 4 s
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4_000),
)
HIGH_BYTES = 256 << 10  # unsent of a stream, unless its protocol says


class Moved(NamedTuple):
    where: bytes


class Trunk(asyncio.Protocol):
    """`opened(stream, payload)` is called for each OPEN; the side that opens streams gets none."""

    def __init__(self, opened: Callable[[Stream, bytes], None] | None = None) -> None:
        self._opened = opened
        self.transport: Any = None
        self.streams: dict[int, Stream] = {}
        self.full = False
        self.lost = False
        self._last = 0
        self._got = bytearray()
        self._out: list[bytes] = []

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=TRUNK_BYTES)
        sock = transport.get_extra_info("socket")
        for level, option, value in _LIVENESS:
            sock.setsockopt(level, option, value)

    def data_received(self, data: bytes) -> None:
        got = self._got
        got += data
        at = 0
        while len(got) - at >= HEAD.size:
            size, kind, number = HEAD.unpack_from(got, at)
            if not HEAD_REST <= size <= HEAD_REST + FRAME_BYTES:
                self.break_off(f"a frame of {size} bytes")
                return
            end = at + 4 + size
            if len(got) < end:
                break
            self._hear(kind, number, bytes(memoryview(got)[at + HEAD.size : end]))
            if self.lost:
                return
            at = end
        del got[:at]

    def _hear(self, kind: int, number: int, payload: bytes) -> None:
        if kind == OPEN and self._opened is not None and number not in self.streams:
            stream = self.streams[number] = Stream(self, number)
            self._opened(stream, payload)
            return
        stream_or_none = self.streams.get(number)
        if stream_or_none is not None:  # else it was closed here, and the other side has not heard of that yet
            stream_or_none.hear(kind, payload)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        for stream in list(self.streams.values()):
            stream.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        for stream in list(self.streams.values()):
            stream.end(exc)

    def break_off(self, why: str) -> None:
        logger.error("the connection to another broker is broken off: %s", why)
        self.lost = True
        self.transport.abort()

    # -- frames

    def open(self, payload: bytes) -> Stream:
        self._last += 1
        stream = self.streams[self._last] = Stream(self, self._last)
        self.send(OPEN, self._last, payload)
        return stream

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        if self.lost:
            return
        if not self._out:
            asyncio.get_running_loop().call_soon(self._write)
        self._out += (HEAD.pack(HEAD_REST + len(payload), kind, number), payload)

    def _write(self) -> None:
        out, self._out = self._out, []
        if not self.lost:
            self.transport.write(b"".join(out))

    def close(self) -> None:
        for stream in list(self.streams.values()):
            stream.close()
        if self._out:
            self._write()
        if self.transport is not None:
            self.transport.close()


class Stream:
    """One client's: a transport as its protocol sees it."""

    def __init__(self, trunk: Trunk, number: int) -> None:
        self._trunk, self.number = trunk, number
        self._protocol: Any = None
        self.taken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.facts: dict[str, Any] = {}  # of the client: what `get_extra_info` says before the trunk does
        self._credit = WINDOW_BYTES
        self._unsent, self._used = bytearray(), 0
        self._high, self._low = HIGH_BYTES, HIGH_BYTES // 4
        self._held: deque[bytes | Moved] = deque()  # while nobody reads; a window at most
        self._held_bytes = 0
        self._reading, self._heard_eof, self._heard_close = True, False, False
        self._pressed = self._eof = self._said_eof = self._closing = self._over = False
        self.moves = False  # whether its relay takes it back
        self._moving: tuple[bytes, bytes] | None = None  # where to, and what the client said
        self._moved = False

    # -- what the other side says

    def hear(self, kind: int, payload: bytes) -> None:
        if (self._moving is not None or self._moved) and kind in (DATA, EOF):
            self._send_back(kind, payload)
        elif kind == MOVE:
            self._held.append(Moved(payload))  # in its place among the bytes
            if self._reading:
                self._deliver()
        elif kind == DATA:
            self._held.append(payload)
            self._held_bytes += len(payload)
            if self._held_bytes > WINDOW_BYTES:
                self._trunk.break_off("more bytes than were granted")
            elif self._reading:
                self._deliver()
        elif kind == GRANT:
            self._credit += int.from_bytes(payload, "big")
            self.flush()
        elif kind == EOF:
            self._heard_eof = True
            if self._reading:
                self._deliver()
        elif kind in (TAKEN, REFUSED):
            if not self.taken.done():
                self.taken.set_result(kind == TAKEN)
            if kind == REFUSED:
                self.end(None)
        elif kind == CLOSE:
            self._heard_close = self._reading = True  # what it said last is delivered, however full the reader is
            self._deliver()

    def hand_back(self, where: bytes, said: bytes) -> None:
        """Its relay is to take the client elsewhere, with what it said. The protocol hears no more of it."""
        held = b"".join(one for one in self._held if not isinstance(one, Moved))
        self._held.clear()
        self._use(self._held_bytes)
        self._held_bytes, self._protocol = 0, None
        self._moving = where, said + held
        self.flush()
        if self._heard_eof:
            self._send_back(EOF, b"")

    def _send_back(self, kind: int, payload: bytes) -> None:
        if kind == EOF:
            self.close()
        elif self._moving is not None:
            self._moving = self._moving[0], self._moving[1] + payload
            self._use(len(payload))
        else:
            self._use(len(payload))
            self._unsent += payload
            self.flush()

    def _deliver(self) -> None:
        if self._protocol is None:
            return  # it goes on with `set_protocol`
        while self._held and not self._over:
            data = self._held.popleft()
            if isinstance(data, Moved):
                self._protocol.moved(data.where)
                continue
            self._held_bytes -= len(data)
            self._use(len(data))
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                self._fill(data)
            else:
                self._protocol.data_received(data)
            if not self._reading and not self._heard_close:
                return
        if self._heard_close:
            self.end(None)
        elif self._heard_eof and not self._over:
            self._heard_eof = False
            if not self._protocol.eof_received():
                self.close()

    def _fill(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._over:
            room = self._protocol.get_buffer(len(rest))
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            self._protocol.buffer_updated(size)
            rest = rest[size:]

    def _use(self, size: int) -> None:
        self._used += size
        if self._used >= WINDOW_BYTES // 2:
            self._trunk.send(GRANT, self.number, self._used.to_bytes(4, "big"))
            self._used = 0

    def end(self, error: Exception | None) -> None:
        """It is over: its protocol is told, once."""
        if self._over:
            return
        self._over = self._closing = True
        self._trunk.streams.pop(self.number, None)
        self._unsent.clear()
        if not self.taken.done():
            self.taken.set_result(False)
        if self._protocol is not None:
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)

    # -- what its protocol does with a transport

    def set_protocol(self, protocol: Any) -> None:
        first, self._protocol = self._protocol is None, protocol
        if first and self._over:
            asyncio.get_running_loop().call_soon(protocol.connection_lost, None)
        elif first and (self._held or self._heard_eof or self._heard_close):
            asyncio.get_running_loop().call_soon(self._go_on)

    def get_protocol(self) -> Any:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name in self.facts:
            return self.facts[name]
        return self._trunk.transport.get_extra_info(name, default)

    def write(self, data: Any) -> None:
        if not self._closing and not self._eof:
            self._unsent += data
            self.flush()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def flush(self) -> None:
        """Send what the window lets through."""
        while self._unsent and self._credit and not self._trunk.full and not self._over:
            piece = bytes(memoryview(self._unsent)[: min(self._credit, FRAME_BYTES)])
            del self._unsent[: len(piece)]
            self._credit -= len(piece)
            self._trunk.send(DATA, self.number, piece)
        if self._over:
            return
        if not self._unsent and self._moving is not None:
            (where, said), self._moving, self._moved = self._moving, None, True
            self._trunk.send(MOVE, self.number, where)
            self._unsent += said
            self.flush()
            return
        if not self._unsent and self._eof and not self._said_eof:
            self._said_eof = True
            self._trunk.send(EOF, self.number)
        if not self._unsent and self._closing:
            self._say_closed()
        elif self._protocol is None:
            return
        elif self._pressed and len(self._unsent) <= self._low:
            self._pressed = False
            self._protocol.resume_writing()
        elif not self._pressed and len(self._unsent) > self._high:
            self._pressed = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            if self._held or self._heard_eof:
                asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._reading:
            self._deliver()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof = True
        self.flush()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Once everything was sent."""
        if not self._closing:
            self._closing = True
            self.flush()

    def abort(self) -> None:
        if not self._over:
            self._unsent.clear()
            self._say_closed()

    def _say_closed(self) -> None:
        self._trunk.send(CLOSE, self.number)
        self.end(None)

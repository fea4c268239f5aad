"""An AMQP client of nothing but frames: content headers as bytes, which pika would take apart and put together."""

from __future__ import annotations

import socket
import struct
from typing import Self

import pika.spec as spec
from pika.amqp_object import Method

from mainstem.testing.broker import Endpoints

METHOD, HEADER, BODY = 1, 2, 3
CHANNEL = 1


class RawAmqp:
    def __init__(self, endpoints: Endpoints) -> None:
        self.socket = socket.create_connection((endpoints.host, endpoints.amqp_port), timeout=20)
        self._buffer = b""
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self._expect(spec.Connection.Start, channel=0)
        self.send(spec.Connection.StartOk({}, "PLAIN", b"\0guest\0guest", "en_US"), channel=0)
        self._expect(spec.Connection.Tune, channel=0)
        self.send(spec.Connection.TuneOk(2047, 131_072, 0), channel=0)
        self.send(spec.Connection.Open("/"), channel=0)
        self._expect(spec.Connection.OpenOk, channel=0)
        self.ask(spec.Channel.Open(), spec.Channel.OpenOk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, method: Method, channel: int = CHANNEL) -> None:
        self._frame(METHOD, struct.pack(">I", method.INDEX) + b"".join(method.encode()), channel)

    def _frame(self, kind: int, payload: bytes, channel: int = CHANNEL) -> None:
        self.socket.sendall(struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce")

    def ask(self, method: Method, answer: type[Method]) -> bytes:
        self.send(method)
        return self._expect(answer)

    def publish(self, exchange: str, key: str, properties: bytes, body: bytes) -> None:
        """`properties`: flags and property list, as they shall travel."""
        self.send(spec.Basic.Publish(exchange=exchange, routing_key=key))
        self._frame(HEADER, struct.pack(">HHQ", 60, 0, len(body)) + properties)
        if body:
            self._frame(BODY, body)
        self._expect(spec.Basic.Ack)

    def delivered(self) -> tuple[bytes, bytes]:
        """(properties as bytes, body) of the next delivery."""
        self._expect(spec.Basic.Deliver)
        _, header = self._next()
        size = int.from_bytes(header[4:12], "big")
        body = b""
        while len(body) < size:
            body += self._next()[1]
        return header[12:], body

    def _expect(self, wanted: type[Method], channel: int = CHANNEL) -> bytes:
        kind, payload = self._next()
        index = int.from_bytes(payload[:4], "big")
        assert (kind, index) == (METHOD, wanted.INDEX), f"expected {wanted.NAME}, got frame {kind} {payload[:200]!r}"
        return payload[4:]

    def _next(self) -> tuple[int, bytes]:
        kind, _, size = struct.unpack(">BHI", self._read(7))
        payload = self._read(size + 1)
        assert payload[-1] == 0xCE
        return kind, payload[:-1]

    def _read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            piece = self.socket.recv(65_536)
            assert piece, "the broker closed the connection"
            self._buffer += piece
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

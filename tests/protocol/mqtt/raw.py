"""An MQTT client that is nothing but bytes: what is sent and what comes back is in the test's own hands."""

from __future__ import annotations

import itertools
import socket
import time
from collections import deque
from typing import Self

from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import Properties, encode_properties, encode_text

WAIT_S = 5.0
_names = itertools.count()


def unique(prefix: str) -> str:
    """A client id or topic that no other test uses."""
    return f"{prefix}-{next(_names)}-{time.monotonic_ns()}"


def connect_packet(
    client_id: str,
    *,
    version: int = 4,
    clean: bool = True,
    keep_alive: int = 60,
    properties: Properties | None = None,
    will: tuple[str, bytes, int, bool] | None = None,
    will_properties: Properties | None = None,
    username: str | None = None,
    password: bytes | None = None,
) -> bytes:
    flags = clean << 1
    tail = b""
    if will is not None:
        topic, payload, qos, retain = will
        flags |= 4 | qos << 3 | retain << 5
        tail += encode_properties(will_properties or {}) if version == 5 else b""
        tail += encode_text(topic.encode()) + encode_text(payload)
    if username is not None:
        flags |= 0x80
        tail += encode_text(username.encode())
    if password is not None:
        flags |= 0x40
        tail += encode_text(password)
    name = b"MQIsdp" if version == 3 else b"MQTT"
    body = encode_text(name) + bytes((version, flags)) + keep_alive.to_bytes(2, "big")
    if version == 5:
        body += encode_properties(properties or {})
    return encode_packet(1, 0, body, encode_text(client_id.encode()), tail)


def publish_packet(
    topic: str,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 1,
    retain: bool = False,
    dup: bool = False,
    version: int = 4,
    properties: Properties | None = None,
) -> bytes:
    body = encode_text(topic.encode())
    if qos:
        body += packet_id.to_bytes(2, "big")
    if version == 5:
        body += encode_properties(properties or {})
    return encode_packet(3, dup << 3 | qos << 1 | retain, body, payload)


def subscribe_packet(
    *filters: tuple[str, int], packet_id: int = 1, version: int = 4, properties: Properties | None = None
) -> bytes:
    """Filters with their option bytes."""
    body = packet_id.to_bytes(2, "big")
    if version == 5:
        body += encode_properties(properties or {})
    for topic_filter, options in filters:
        body += encode_text(topic_filter.encode()) + bytes((options,))
    return encode_packet(8, 2, body)


def ack_packet(kind: int, packet_id: int) -> bytes:
    return bytes((kind << 4 | (2 if kind == 6 else 0), 2)) + packet_id.to_bytes(2, "big")


class Message:
    """A PUBLISH that came."""

    def __init__(self, first: int, body: bytes, version: int) -> None:
        self.dup, self.qos, self.retain = bool(first & 8), first >> 1 & 3, bool(first & 1)
        size = int.from_bytes(body[:2], "big")
        self.topic = body[2 : 2 + size].decode()
        at = 2 + size
        self.packet_id = 0
        if self.qos:
            self.packet_id = int.from_bytes(body[at : at + 2], "big")
            at += 2
        self.properties = b""
        if version == 5:
            length = shift = 0
            while True:
                digit = body[at]
                at += 1
                length |= (digit & 0x7F) << shift
                shift += 7
                if digit < 0x80:
                    break
            self.properties = body[at : at + length]
            at += length
        self.payload = body[at:]

    def __repr__(self) -> str:
        return f"<{self.topic} {self.payload!r} qos {self.qos} id {self.packet_id} dup {self.dup} retain {self.retain}>"


class Raw:
    """`with Raw(port) as client:`; every wait has a deadline."""

    def __init__(self, port: int, *, version: int = 4) -> None:
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self._buffer = b""
        self._early: deque[tuple[int, bytes]] = deque()  # read while looking for another packet

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @classmethod
    def connected(cls, port: int, client_id: str = "", **options: object) -> Raw:
        """Past CONNACK, which was a success; `session_present` is remembered."""
        version = int(options.get("version", 4))  # type: ignore[call-overload]
        client = cls(port, version=version)
        client.send(connect_packet(client_id or unique("raw"), **options))  # type: ignore[arg-type]
        first, body = client.packet()
        assert (first, body[1]) == (0x20, 0), (first, body)
        client.session_present = bool(body[0])
        client.connack = body
        return client

    session_present = False
    connack = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def packet(self) -> tuple[int, bytes]:
        """The next packet: its first byte and its body. Fails when the broker closes instead."""
        if self._early:
            return self._early.popleft()
        return self._read()

    def _read(self) -> tuple[int, bytes]:
        while True:
            found = self._take()
            if found is not None:
                return found
            data = self.socket.recv(65_536)
            assert data, "the broker closed the connection"
            self._buffer += data

    def _take(self) -> tuple[int, bytes] | None:
        size = shift = 0
        for at in range(1, len(self._buffer)):
            size |= (self._buffer[at] & 0x7F) << shift
            shift += 7
            if self._buffer[at] < 0x80:
                end = at + 1 + size
                if len(self._buffer) < end:
                    return None
                packet = self._buffer[0], self._buffer[at + 1 : end]
                self._buffer = self._buffer[end:]
                return packet
        return None

    def expect(self, data: bytes) -> None:
        """Exactly these bytes come next."""
        assert not self._early, f"{self._early[0]} came before"
        while len(self._buffer) < len(data):
            piece = self.socket.recv(65_536)
            assert piece, f"closed; expected {data.hex(' ')}, have {self._buffer.hex(' ')}"
            self._buffer += piece
        got, self._buffer = self._buffer[: len(data)], self._buffer[len(data) :]
        assert got == data, f"expected {data.hex(' ')}, got {got.hex(' ')}"

    def message(self, *, ack: bool = True) -> Message:
        """The next PUBLISH, acknowledged as its QoS asks for unless told otherwise."""
        first, body = self.packet()
        assert first >> 4 == 3, f"expected PUBLISH, got {first:#x} {body.hex(' ')}"
        message = Message(first, body, self.version)
        if ack and message.qos == 1:
            self.send(ack_packet(4, message.packet_id))
        elif ack and message.qos == 2:
            self.send(ack_packet(5, message.packet_id))
            self._until(0x62, message.packet_id)
            self.send(ack_packet(7, message.packet_id))
        return message

    def _until(self, first: int, packet_id: int) -> bytes:
        """The body of that packet; what comes before it (deliveries may) is kept for later."""
        while True:
            got, body = self._read()
            if got == first and int.from_bytes(body[:2], "big") == packet_id:
                return body
            self._early.append((got, body))

    def subscribe(self, *filters: tuple[str, int], properties: Properties | None = None) -> list[int]:
        """The reason codes."""
        self.send(subscribe_packet(*filters, packet_id=1, version=self.version, properties=properties))
        return list(self._until(0x90, 1)[-len(filters) :])

    def publish(self, topic: str, payload: bytes = b"", *, qos: int = 0, **options: object) -> None:
        """Through the whole handshake of its QoS."""
        self.send(publish_packet(topic, payload, qos=qos, version=self.version, **options))  # type: ignore[arg-type]
        packet_id = int(options.get("packet_id", 1))  # type: ignore[call-overload]
        if qos == 1:
            assert self._answer()[0] == 0x40
        elif qos == 2:
            assert self._answer()[0] == 0x50
            self.send(ack_packet(6, packet_id))
            assert self._answer()[0] == 0x70

    def _answer(self) -> tuple[int, bytes]:
        first, body = self.packet()
        assert len(body) == 2 or body[2] < 0x80, f"refused with {body[2]:#x}"
        return first, body

    def ping(self) -> None:
        """Everything sent before was handled once this returns, if nothing else is on its way to us."""
        self.send(b"\xc0\x00")
        self.expect(b"\xd0\x00")

    def acks(self, acks: int) -> None:
        """Read that many PUBACKs."""
        for _ in range(acks):
            first, _ = self.packet()
            assert first == 0x40

    def nothing_more(self) -> None:
        """Nothing comes: the answer to a ping is the next packet."""
        self.ping()

    def disconnect(self) -> None:
        self.send(b"\xe0\x00")
        self.closed()

    def closed(self) -> bytes:
        """The broker closes; returns what it still said."""
        said = self._buffer
        self._buffer = b""
        try:
            while data := self.socket.recv(65_536):
                said += data
        except ConnectionResetError:
            pass
        return said

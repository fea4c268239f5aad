"""An MQTT 5 client: QoS 0 and 1, user properties as headers, history through `$stream`."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

from mainstem.model.errors import InvalidArgument, MainstemError
from mainstem.protocols.mqtt.wire.properties import (
    IN_PUBLISH,
    Properties,
    Property,
    Reader,
    decode_properties,
    encode_properties,
    encode_text,
    encode_varint,
)
from mainstem.protocols.mqtt.wire.reasons import Reason
from mainstem.server.cli.failures import Refused, WrongPeer
from mainstem.server.clients.client import Address, Message, Start, Stream

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK, PINGREQ, PINGRESP, DISCONNECT = 1, 2, 3, 4, 8, 9, 12, 13, 14
KEEP_ALIVE_S = 30
UNACKED_MAX = 512
ALL_PROPERTIES = frozenset(Property)
FIXES: dict[int, str] = {  # of reasons that come without words
    Reason.IMPLEMENTATION_SPECIFIC: "a header that begins with ms- has a meaning: docs/mqtt.md",
    Reason.NOT_AUTHORIZED: "mainstem user may NAME publish TOPIC --why, then: mainstem user allow NAME publish TOPIC",
    Reason.QUOTA_EXCEEDED: "the disk is full, or the message over a limit: mainstem doctor",
}


class MqttClient:
    def __init__(self, address: Address) -> None:
        self._stream = Stream(address)
        self.qos = int(address.options.get("qos", "1"))
        self.retain = address.options.get("retain", "0") not in ("0", "false", "")
        self._packet_id = 0
        self._unacked = 0
        self._unacked_max = UNACKED_MAX
        self._connect(address)

    def publish(self, message: Message) -> None:
        user = [(name.encode(), value or b"") for name, value in message.headers]
        if message.key is not None:
            user.append((b"ms-key", message.key))
        for name, value in user:
            try:
                value.decode()
            except UnicodeDecodeError:
                raise InvalidArgument(
                    f"MQTT carries keys and headers as UTF-8; {name.decode()} is {value[:40]!r}",
                    fix="publish it by kafka:// or amqp://",
                ) from None
        properties: Properties = {Property.USER_PROPERTY: user} if user else {}
        body = encode_text(message.topic.encode())
        if self.qos:
            self._packet_id = self._packet_id % 65_535 + 1
            body += self._packet_id.to_bytes(2, "big")
            self._unacked += 1
        body += encode_properties(properties) + (message.value or b"")
        self._send(PUBLISH, body, flags=self.qos << 1 | self.retain)
        while self._unacked >= self._unacked_max:
            self._read_ack()

    def flush(self) -> None:
        if not self.qos:  # nothing is acknowledged, but a broker that ends the connection over it is heard
            self._send(PINGREQ, b"")
            self._unacked += 1
        while self._unacked:
            self._read_ack()

    def subscribe(self, target: str, start: Start) -> None:
        properties: Properties = {}
        if start.kind != "latest":
            target = f"$stream/{target}"
            properties = {Property.USER_PROPERTY: [(b"stream-offset", _stream_offset(start))]}
        body = b"\0\1" + encode_properties(properties) + encode_text(target.encode()) + bytes([self.qos])
        self._send(SUBSCRIBE, body, flags=2)
        kind, _, answer = self._packet()
        reader = Reader(answer, 2)
        said = decode_properties(reader, ALL_PROPERTIES).get(Property.REASON_STRING, b"") if kind == SUBACK else b""
        if kind != SUBACK or answer[-1] >= 0x80:
            raise Refused(f"the broker refuses to subscribe to {target}: {said.decode() or _reason(answer[-1])}")

    def messages(self, idle_s: float | None = None) -> Iterator[Message]:
        heard = time.monotonic()
        while True:
            wait_s = KEEP_ALIVE_S / 2 if idle_s is None else min(idle_s, KEEP_ALIVE_S / 2)
            try:
                kind, flags, body = self._packet(wait_s)
            except TimeoutError:
                if idle_s is not None and time.monotonic() - heard >= idle_s:
                    return
                self._send(PINGREQ, b"")
                continue
            if kind == PUBLISH:
                heard = time.monotonic()
                yield self._delivery(flags, body)
            elif kind == DISCONNECT:
                raise _ended(body)

    def close(self) -> None:
        with suppress(MainstemError):  # it is gone already, which is what we want
            self._send(DISCONNECT, b"")
        self._stream.close()

    def _connect(self, address: Address) -> None:
        client_id = address.options.get("client_id") or f"mainstem-cli-{os.getpid()}-{os.urandom(3).hex()}"
        flags = 2 | (0xC0 if address.user else 0)
        body = encode_text(b"MQTT") + bytes([5, flags]) + struct.pack(">H", KEEP_ALIVE_S) + b"\0"
        body += encode_text(client_id.encode())
        if address.user:
            body += encode_text(address.user.encode()) + encode_text(address.password.encode())
        self._send(CONNECT, body)
        kind, _, answer = self._packet()
        if kind != CONNACK or len(answer) < 2:
            raise WrongPeer(f"{self._stream.where} does not answer like MQTT")
        if answer[1]:
            raise Refused(
                f"{self._stream.where} refuses the connection: {_told(answer, 1)}",
                fix="where users exist: mqtt://USER:PASSWORD@HOST/TOPIC",
            )
        told = decode_properties(Reader(answer, 2), ALL_PROPERTIES)
        self._unacked_max = min(UNACKED_MAX, told.get(Property.RECEIVE_MAXIMUM, 65_535))

    def _read_ack(self) -> None:
        kind, _, body = self._packet()
        if kind in (PUBACK, PINGRESP):
            self._unacked -= 1
            if len(body) > 2 and body[2] >= 0x80:
                raise Refused(f"the broker refuses the message: {_told(body, 2)}", fix=FIXES.get(body[2], ""))
        elif kind == DISCONNECT:
            raise _ended(body)

    def _delivery(self, flags: int, body: bytes) -> Message:
        reader = Reader(body)
        topic = reader.text().decode()
        qos = flags >> 1 & 3
        if qos:
            self._send(PUBACK, reader.take(2))
        told = decode_properties(reader, IN_PUBLISH)
        headers: list[tuple[str, bytes | None]] = []
        facts: dict[str, object] = {"qos": qos, "retain": bool(flags & 1)}
        key = None
        for name, value in told.get(Property.USER_PROPERTY, []):
            if name == b"ms-key":
                key = value
            elif name == b"ms-offset":
                facts["offset"] = int(value)
            elif name in (b"ms-partition", b"ms-append-time", b"ms-ts"):
                facts[name.decode().removeprefix("ms-")] = value.decode()
            else:
                headers.append((name.decode(), value))
        if Property.CONTENT_TYPE in told:
            facts["content_type"] = told[Property.CONTENT_TYPE].decode()
        return Message(body[reader.at :], topic, key, headers, facts)

    def _send(self, kind: int, body: bytes, flags: int = 0) -> None:
        self._stream.send(bytes([kind << 4 | flags]) + encode_varint(len(body)) + body)

    def _packet(self, wait_s: float | None = None) -> tuple[int, int, bytes]:
        first = self._stream.read(1, wait_s=wait_s)[0]
        size = shift = 0
        while True:
            digit = self._stream.read(1)[0]
            size |= (digit & 0x7F) << shift
            if digit < 0x80:
                break
            shift += 7
            if shift > 21:
                raise WrongPeer(f"{self._stream.where} does not answer like MQTT")
        return first >> 4, first & 15, self._stream.read(size)


def _stream_offset(start: Start) -> bytes:
    if start.kind == "earliest":
        return b"earliest"
    if start.kind == "time":
        return b"ts:%d" % start.value
    if start.kind == "offset":
        return b"%d" % start.value
    if start.kind == "stamp":
        return b"stamp:%d" % start.value
    raise InvalidArgument("MQTT cannot count back", fix="--from earliest or --from 5m, or use kafka://")


def _ended(body: bytes) -> Refused:
    return Refused(f"the broker ended the connection: {_told(body, 0)}")


def _told(body: bytes, at: int) -> str:
    """The reason at this place of a packet, with the words behind it if there are any."""
    code = body[at] if len(body) > at else 0
    words = b""
    if len(body) > at + 1:
        words = decode_properties(Reader(body, at + 1), ALL_PROPERTIES).get(Property.REASON_STRING, b"")
    return f"{_reason(code)}: {words.decode()}" if words else _reason(code)


def _reason(code: int) -> str:
    try:
        return f"{Reason(code).name.lower().replace('_', ' ')} (0x{code:02x})"
    except ValueError:
        return f"reason 0x{code:02x}"

"""What clients say, as bytes of a socket, by protocol and by the state it leaves the session in; and how to spoil it.

A conversation is a prefix that brings a session to a state (nothing said, greeted, logged in, open, closing) and words
that make sense there. `one_stream` draws both and changes a few bytes of the words, seldom of the prefix.
"""

from __future__ import annotations

import random
import struct

from mainstem.model.amqp_content import Content, Value
from mainstem.protocols.amqp.methods import METHODS, encode
from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.schema import APIS
from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import encode_text

PROTOCOLS = ("mqtt", "kafka", "amqp", "nats", "ws", "http")

HEADER_VALUES: list[Value] = [1, "text", [1, None, {"k": [True]}], {"n": {"m": b"\0"}}, None]
_AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
_MASK = b"\x01\x02\x03\x04"


def amqp_frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def _amqp(name: str, channel: int = 0, **values: object) -> bytes:
    return amqp_frame(1, channel, encode(name, **values))


def _start_ok() -> bytes:
    return _amqp(
        "connection.start-ok", client_properties={}, mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US"
    )


def _amqp_states() -> list[bytes]:
    greeted = _AMQP_HEADER
    tuning = greeted + _start_ok()
    opening = tuning + _amqp("connection.tune-ok", channel_max=100, frame_max=131_072, heartbeat=0)
    running = opening + _amqp("connection.open", virtual_host="/")
    channel = running + _amqp("channel.open", 1)
    publishing = channel + _amqp("basic.publish", 1, exchange="", routing_key="fuzz")
    body = publishing + amqp_frame(2, 1, struct.pack(">HHQ", 60, 0, 50) + b"\0\0")
    bad = amqp_frame(1, 0, b"\x00\x0a\x00\xff")  # the broker says connection.close and waits
    return [
        b"",
        greeted,
        tuning,
        opening,
        running,
        channel,
        publishing,
        body,
        greeted + bad,
        tuning + bad,
        channel + bad,
    ]


def _amqp_word(rng: random.Random) -> bytes:
    chance = rng.random()
    if chance < 0.5:
        return _amqp(rng.choice(METHODS).name, rng.choice((0, 1, 1, 2)))
    if chance < 0.6:
        return rng.choice(
            (_start_ok(), _amqp("connection.close"), _amqp("connection.close-ok"), b"\x08\0\0\0\0\0\0\xce")
        )
    content = Content()
    content.set_text("message_id", "x" * rng.randrange(6))
    if rng.random() < 0.5:
        content.set_header("h", rng.choice(HEADER_VALUES))
    body = rng.randbytes(rng.choice((0, 1, 300)))
    return b"".join(
        (
            _amqp("basic.publish", 1, exchange="e" * rng.randrange(2), routing_key="k", mandatory=rng.random() < 0.5),
            amqp_frame(2, 1, struct.pack(">HHQ", 60, 0, len(body)) + (content.encode() or b"\0\0")),
            amqp_frame(3, 1, body) if body else b"",
        )
    )


def _mqtt_connect(version: int, clean: int = 2) -> bytes:
    properties = b"\x05\x11\0\0\0\x0a" if version == 5 else b""
    return encode_packet(
        1, 0, encode_text(b"MQTT"), bytes((version, clean, 0, 60)), properties, encode_text(b"fuzz"), b""
    )


def _mqtt_states() -> list[bytes]:
    old, new = _mqtt_connect(4), _mqtt_connect(5, clean=0)
    subscribed = new + encode_packet(8, 2, b"\0\1\0", encode_text(b"a/#"), b"\2", encode_text(b"$share/g/b"), b"\1")
    return [b"", old, new, subscribed, new + b"\xe0\x00", old + b"\xe0\x00"]


_MQTT_WORDS = (
    _mqtt_connect(4),
    encode_packet(1, 0, encode_text(b"MQTT"), b"\x05\xc2\x00\x3c\x05\x11\0\0\0\x0a", encode_text(b"me"), b"\0\1u\0\1p"),
    encode_packet(3, 0, encode_text(b"a/b"), b"\0", b"payload"),
    encode_packet(3, 3, encode_text(b"a/x"), b"\0\1\0", b"retained"),
    encode_packet(3, 5, encode_text(b"a/x"), b"\0\2\0", b"twice"),
    encode_packet(
        3, 12, encode_text(b"a"), b"\0\2", b"\x1a\x01\1\x02\0\0\0\x0a\x23\0\1\x26\0\1k\0\1v\x08\0\1r\x03\0\1t"
    ),
    b"\x40\x02\x00\x01",
    b"\x50\x03\x00\x01\x80",
    b"\x62\x02\x00\x02",
    b"\x70\x02\x00\x02",
    encode_packet(8, 2, b"\0\1\0", encode_text(b"a/#"), b"\x2d", encode_text(b"$queue/q/b"), b"\1"),
    encode_packet(8, 2, b"\0\1\0", encode_text(b"$stream/a/#"), b"\1"),
    encode_packet(10, 2, b"\0\1\0", encode_text(b"a/#")),
    b"\xc0\x00",
    encode_packet(14, 0, b"\x04\x05\x11\0\0\0\1"),
    encode_packet(15, 0, b"\x18\0"),
)


def _kafka_word(rng: random.Random) -> bytes:
    api = rng.choice(list(APIS.values()))
    version = rng.randint(api.first, api.last)
    name = f"{api.name}Request"
    value = wire.message(name)()
    return b"".join(wire.encode_request(name, version, value, correlation=rng.randrange(9), client_id="fuzz"))


_NATS_CONNECT = b'CONNECT {"verbose":false,"headers":true,"protocol":1,"name":"fuzz"}\r\n'
_NATS_HEADERS = b"NATS/1.0\r\na: b\r\n\r\n"
_NATS_WORDS = (
    _NATS_CONNECT,
    b"PING\r\n",
    b"PONG\r\n",
    b"SUB fuzz.* 1\r\n",
    b"SUB fuzz.> workers 2\r\n",
    b"SUB _INBOX.1.* 3\r\n",
    b"UNSUB 1\r\n",
    b"UNSUB 2 5\r\n",
    b"PUB fuzz.a 5\r\nhello\r\n",
    b"PUB fuzz.a _INBOX.1.2 0\r\n\r\n",
    b"PUB $JS.API.STREAM.NAMES _INBOX.1.3 2\r\n{}\r\n",
    b"HPUB fuzz.b %d %d\r\n%sx\r\n" % (len(_NATS_HEADERS), len(_NATS_HEADERS) + 1, _NATS_HEADERS),
)


def nats_word(rng: random.Random) -> bytes:
    return rng.choice(_NATS_WORDS)


def _ws_frame(opcode: int, payload: bytes) -> bytes:
    size = bytes((0x80 | len(payload),)) if len(payload) < 126 else b"\xfe" + struct.pack(">H", len(payload))
    masked = bytes(byte ^ _MASK[at & 3] for at, byte in enumerate(payload))
    return bytes((0x80 | opcode,)) + size + _MASK + masked


_WS_HELLO = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
_HTTP_WORDS = (
    b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/topics?limit=-1&after=%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /api/queues?page=99999999999999999999&page_size=x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n"
    b'{"name": "ab"}',
    b"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 40\r\n\r\n"
    + b"[" * 40,
    b"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'5\r\n{"a":\r\n1\r\n1\r\n1\r\n}\r\n0\r\n\r\n',
)


def _word(protocol: str, rng: random.Random) -> bytes:
    match protocol:
        case "mqtt":
            return rng.choice(_MQTT_WORDS)
        case "kafka":
            return _kafka_word(rng)
        case "amqp":
            return _amqp_word(rng)
        case "nats":
            return nats_word(rng)
        case "ws":
            return _ws_frame(rng.choice((2, 2, 2, 0, 1, 8, 9)), rng.choice(_MQTT_WORDS))
        case _:
            return rng.choice(_HTTP_WORDS)


def states(protocol: str) -> list[bytes]:
    match protocol:
        case "mqtt":
            return _mqtt_states()
        case "amqp":
            return _amqp_states()
        case "nats":
            return [b"", _NATS_CONNECT, _NATS_CONNECT + b"SUB fuzz.> 9\r\n", _NATS_CONNECT + b"PUB fuzz.a 50\r\nxy"]
        case "ws":
            return [b"", _WS_HELLO, *(_WS_HELLO + _ws_frame(2, one) for one in _mqtt_states()[1:])]
        case _:
            return [b""]


def one_stream(protocol: str, rng: random.Random) -> bytes:
    """A conversation with a few bytes changed, taken out or put in."""
    prefix = rng.choice(states(protocol))
    words = bytearray(b"".join(_word(protocol, rng) for _ in range(rng.randint(1, 5))))
    spoil(words, rng)
    if rng.random() < 0.05:
        spoilt = bytearray(prefix)
        spoil(spoilt, rng)
        prefix = bytes(spoilt)
    return prefix + bytes(words)


def spoil(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if at < len(data):
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xCE, 0xFF, rng.randrange(256)))
            case 1 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at : at + rng.randrange(1, 9)]
            case 3:
                data[at : at + 4] = struct.pack(
                    ">i", rng.choice((-1, 0, 1 << 30, (1 << 31) - 1, rng.randrange(1 << 20)))
                )
            case 4:
                data[at : at + 2] = b"\xff\xff"
            case _:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))


def pieces_of(data: bytes, rng: random.Random) -> list[bytes]:
    """As a socket may cut it: whole, in two, or in many."""
    if len(data) < 2 or rng.random() < 0.5:
        return [data]
    cuts = sorted(rng.randrange(1, len(data)) for _ in range(rng.choice((1, 1, 5))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]

"""Rubbish for the AMQP wire: whatever comes, it is read or refused with a Fault, and both implementations agree.

    python -m fuzz.fuzz_amqp [seconds] [seed]

Its own inputs are random mutations of valid frames; how it runs: `driver.py`.

An input is a stream of bytes as a socket would give it, cut in two at a place its first byte chooses.
"""

from __future__ import annotations

import random
import struct
from types import ModuleType
from typing import Any

from fuzz.driver import main
from fuzz.streams import HEADER_VALUES
from mainstem.model.amqp_content import Content
from mainstem.model.errors import PeerViolation
from mainstem.protocols.amqp import wire
from mainstem.protocols.amqp.faults import Fault
from mainstem.protocols.amqp.methods import METHODS, decode, encode
from tests.oracles import amqp_wire

FRAME_MAX = 131_072
BODY_BYTES_MAX = 1 << 16
WIRES = [amqp_wire, wire]


class Ticker:
    ticks = 0

    def mark_dirty(self, connection: Any) -> None:
        pass


def events(wire: ModuleType, pieces: list[bytes]) -> list[Any]:
    """What comes out, up to the first fault that ends the connection."""
    inbound = wire.Inbound()
    inbound.frame_max, inbound.body_bytes_max = FRAME_MAX, BODY_BYTES_MAX
    inbound.targets = wire.TargetTable(
        lambda exchange, key: wire.Target(None, exchange.hex(), key.hex(), flags=8, head=b"", head_count=0, plain=False)
    )
    out = wire.Outbound(Ticker(), lambda record: b"", lambda record: b"")
    inbound.open(wire.ChannelWire(1, out, None))
    found: list[Any] = []
    for piece in pieces:
        inbound.receive(piece)
        while True:
            try:
                event = inbound.next(1)
            except Fault as fault:
                found.append((fault.code, fault.text))
                if fault.hard:
                    return found
                continue
            if event is None:
                break
            found.append(tuple(getattr(part, "key", part) for part in event))
    return found


def check(data: bytes) -> None:
    place, stream = (data[0] if data else 0), data[1:]
    middle = place * (len(stream) + 1) // 256
    pieces = [stream[:middle], stream[middle:]]
    answers = [events(wire, pieces) for wire in WIRES]
    assert all(answer == answers[0] for answer in answers), answers
    assert events(WIRES[-1], [stream]) == answers[0], "a cut changes what is read"
    for event in answers[0]:
        if len(event) == 3 and isinstance(event[2], bytes) and event[1] > 15:
            try:
                decode(event[1], event[2])
            except Fault:
                continue
        elif len(event) == 8:
            try:
                Content.parse(event[4])
            except PeerViolation as error:
                raise AssertionError("properties that the wire let through cannot be read") from error


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def one_message(rng: random.Random) -> bytes:
    """A valid publish or method, or nearly."""
    if rng.random() < 0.4:
        method = rng.choice(METHODS)
        return frame(1, rng.choice((0, 1, 1, 1, 2)), encode(method.name))
    content = Content()
    for name in rng.sample(["content_type", "reply_to", "expiration", "message_id", "user_id", "app_id"], 2):
        content.set_text(name, "x" * rng.randrange(6))
    if rng.random() < 0.6:
        for name in rng.sample(["a", "CC", "BCC", "x-delay", "ms-key"], 2):
            content.set_header(name, rng.choice(HEADER_VALUES))
    body = rng.randbytes(rng.choice((0, 1, 30, 300)))
    cut = rng.randrange(len(body) + 1)
    parts = [
        frame(1, 1, encode("basic.publish", exchange="e" * rng.randrange(3), routing_key="k", mandatory=True)),
        frame(2, 1, struct.pack(">HHQ", 60, 0, len(body)) + (content.encode() or b"\0\0")),
        *(frame(3, 1, piece) for piece in (body[:cut], body[cut:]) if piece),
    ]
    return b"".join(parts)


def one_input(rng: random.Random) -> bytes:
    data = bytearray(b"".join(one_message(rng) for _ in range(rng.randrange(1, 4))))
    for _ in range(rng.choice((0, 1, 1, 2, 8))):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at : at + rng.randrange(1, 6)]
            case 3:
                data[at:at] = rng.randbytes(rng.randrange(1, 6))
        if not data:
            break
    return bytes((rng.randrange(256),)) + bytes(data)


if __name__ == "__main__":
    main(check, one_input)

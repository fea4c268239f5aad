"""Rubbish for the MQTT parser: whatever comes, it is read or refused with a Violation, and both implementations agree.

    python -m fuzz.fuzz_mqtt [seconds] [seed]

Its own inputs are random mutations of valid packets; how it runs: `driver.py`.
"""

from __future__ import annotations

import random

from fuzz.driver import main
from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import encode_text
from tests.oracles.mqtt_halves import Bench

SEEDS = [
    encode_packet(1, 0, encode_text(b"MQTT"), b"\x05\xc2\x00\x3c\x05\x11\0\0\0\x0a", encode_text(b"me"), b"\0\1u\0\1p"),
    encode_packet(1, 0, encode_text(b"MQTT"), b"\x04\x2e\x00\x3c", encode_text(b"me"), encode_text(b"w"), b"\0\1x"),
    encode_packet(3, 0, encode_text(b"a/b"), b"\0", b"payload"),
    encode_packet(3, 3, encode_text(b"known/x"), b"\0\1\0", b"retained"),
    encode_packet(
        3, 12, encode_text(b"a"), b"\0\2", b"\x1a\x01\1\x02\0\0\0\x0a\x23\0\1\x26\0\1k\0\1v\x08\0\1r\x03\0\1t", b"x"
    ),
    b"\x40\x02\x00\x01",
    b"\x50\x03\x00\x01\x80",
    b"\x62\x02\x00\x02",
    b"\x70\x02\x00\x02",
    encode_packet(8, 2, b"\0\1\2\x0b\1", encode_text(b"a/#"), b"\x2d", encode_text(b"$share/g/b"), b"\1"),
    encode_packet(10, 2, b"\0\1\0", encode_text(b"a/#")),
    b"\xc0\x00",
    encode_packet(14, 0, b"\x04\x05\x11\0\0\0\1"),
    encode_packet(15, 0, b"\x18\0"),
]


def check(data: bytes) -> None:
    """The first byte chooses version, state and cuts; the rest is what the peer sends."""
    if not data:
        return
    how, data = data[0], data[1:]
    version = (0, 4, 5, 5)[how & 3]
    step = (len(data) + 1, 1, 7, 64)[how >> 2 & 3]
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    told = []
    for way in ("plain", "compiled"):
        bench = Bench(way, version=version or 4, durable=bool(how & 16))
        bench.inbound.version = version
        result = [bench.feed(pieces)]
        result.append([bench.settle(), bench.state()])
        told.append(result)
    assert all(one == told[0] for one in told), f"the implementations disagree: {told}"


def mutated(chance: random.Random) -> bytes:
    data = bytearray(b"".join(chance.choice(SEEDS) for _ in range(chance.randint(1, 6))))
    for _ in range(chance.choice([0, 1, 1, 2, 5])):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(4)
        if kind == 0 and at < len(data):
            data[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif kind == 1:
            data[at:at] = chance.randbytes(chance.randint(1, 4))
        elif kind == 2:
            del data[at : at + chance.randint(1, 4)]
        elif at < len(data):
            data[at] ^= 1 << chance.randrange(8)
    return bytes([chance.randrange(32)]) + bytes(data)


if __name__ == "__main__":
    main(check, mutated)

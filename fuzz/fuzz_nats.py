"""Rubbish for NATS's reader: whatever comes, it is read or refused with a WireError, and both implementations agree.

    python -m fuzz.fuzz_nats [seconds] [seed]

Its own inputs are spoilt commands (`streams.py`); how it runs: `driver.py`.
"""

from __future__ import annotations

import random
from typing import Any

from fuzz.driver import main
from fuzz.streams import nats_word, spoil
from mainstem.protocols.nats.commands import WireError
from mainstem.protocols.nats.wire import Inbound
from tests.oracles.nats_wire import parse

PAYLOAD_MAX = 1_000
STEPS = (1 << 20, 1, 7, 64)  # how a socket may cut it


def compiled(data: bytes, step: int) -> tuple[list[tuple[Any, ...]], str | None]:
    inbound, found = Inbound(PAYLOAD_MAX), list[tuple[Any, ...]]()
    try:
        for at in range(0, len(data), step):
            inbound.receive(data[at : at + step])
            while (command := inbound.next(0)) is not None:
                found.append(command)
    except WireError as error:
        return found, error.text
    return found, None


def check(data: bytes) -> None:
    """The first byte chooses the cuts; the rest is what the peer sends."""
    if not data:
        return
    step, data = STEPS[data[0] & 3], data[1:]
    found, fault = compiled(data, step)
    commands, rest = parse(data, PAYLOAD_MAX)
    told = rest if isinstance(rest, str) else None
    assert (found, fault) == (commands, told), f"the implementations disagree: {(found, fault)} and {(commands, told)}"


def spoilt(rng: random.Random) -> bytes:
    data = bytearray(b"".join(nats_word(rng) for _ in range(rng.randint(1, 6))))
    spoil(data, rng)
    return bytes((rng.randrange(4),)) + bytes(data)


if __name__ == "__main__":
    main(check, spoilt)

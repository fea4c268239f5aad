"""Rubbish for whole sessions: each protocol's adapter, in each state of its session, on a broker of its own in memory.

    python -m fuzz.fuzz_sessions [seconds] [seed]

An input is a protocol (its first byte), a seed for the cuts (four bytes) and what the socket brings. Whatever it is, it is
handled within INPUT_S_MAX: a loop that does not end is a failure, and so is an exception that nobody expected.
`streams.py` knows the states.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import socket
from types import FrameType
from typing import Any

from fuzz.driver import main
from fuzz.streams import PROTOCOLS, one_stream, pieces_of
from mainstem.testing import Broker

INPUT_S_MAX = 5
SESSIONS = tuple(name for name in PROTOCOLS if name != "http")  # that is uvicorn's; the socket fuzzer drives it


FACTS = {  # of a TLS socket: what is encrypted leaves through the transport
    "peername": ("127.0.0.1", 1),
    "sockname": ("127.0.0.1", 2),
    "socket": socket.socket(),
    "sslcontext": True,
}


class Errors(logging.Handler):
    """What the broker did not expect."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(logging.Formatter().format(record))


class Pipe:
    """A transport to nobody."""

    def __init__(self) -> None:
        self.closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return FACTS.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        """Kafka reads in place; here `on_data` is called instead."""

    def write(self, data: bytes) -> None:
        pass

    def writelines(self, pieces: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close


class Sessions:
    """The broker that all inputs share; what one leaves behind must not hurt the next."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.errors = Errors()
        logging.getLogger("mainstem").addHandler(self.errors)
        logging.getLogger("asyncio").addHandler(self.errors)
        logging.getLogger("mainstem").setLevel(logging.ERROR)
        self.broker = Broker()
        self.loop.run_until_complete(self.broker.__aenter__())
        signal.signal(signal.SIGALRM, self.too_long)

    def too_long(self, number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"an input kept the loop for {INPUT_S_MAX} s")

    def check(self, data: bytes) -> None:
        if len(data) < 5:
            return
        protocol = SESSIONS[data[0] % len(SESSIONS)]
        pieces = pieces_of(data[5:], random.Random(data[1:5]))
        signal.alarm(INPUT_S_MAX)
        try:
            self.loop.run_until_complete(self.feed(protocol, pieces))
        finally:
            signal.alarm(0)
        found, self.errors.found = self.errors.found, []
        assert not found, found[0]

    async def feed(self, protocol: str, pieces: list[bytes]) -> None:
        assert self.broker.app is not None
        connection = self.broker.app.servers[protocol].make_connection()
        pipe = Pipe()
        connection.connection_made(pipe)
        take = connection.on_data if protocol == "kafka" else connection.data_received
        for piece in pieces:
            if not pipe.closing:
                take(piece)
            await asyncio.sleep(0)  # a turn, in which the ticker writes and sends
        await asyncio.sleep(0)
        connection.connection_lost(None)
        await asyncio.sleep(0)


def one_input(rng: random.Random) -> bytes:
    index = rng.randrange(len(SESSIONS))
    return bytes((index,)) + rng.randbytes(4) + one_stream(SESSIONS[index], rng)


if __name__ == "__main__":
    main(Sessions().check, one_input)

"""Large frames in pieces: the library reads the same message from them, however the bytes were cut on the way."""

from __future__ import annotations

import random
import struct

import pytest
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from mainstem.protocols.websocket_pieces import PIECE_BYTES, Pieces

BYTES_MAX = 1 << 20
REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def opened() -> ServerProtocol:
    protocol = ServerProtocol(max_size=BYTES_MAX)
    protocol.receive_data(REQUEST)
    (request,) = protocol.events_received()
    protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
    return protocol


def frame(first: int, payload: bytes, key: bytes = b"\x11\x22\x33\x44") -> bytes:
    size = len(payload)
    if size < 126:
        head = bytes((first, 0x80 | size))
    else:
        head = struct.pack(">BBH", first, 0xFE, size) if size < 1 << 16 else struct.pack(">BBQ", first, 0xFF, size)
    repeated = (key * (size // 4 + 1))[:size]
    masked = (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
    return head + key + masked


@pytest.mark.parametrize("seed", range(20))
def test_messages_arrive_as_they_were_sent_and_no_frame_is_larger_than_a_piece(seed: int) -> None:
    rng = random.Random(seed)
    edges = (0, 1, 125, 126, 65_535, PIECE_BYTES, PIECE_BYTES + 1, PIECE_BYTES * 3 + 2, BYTES_MAX)
    sent = [rng.randbytes(rng.choice(edges)) for _ in range(6)]
    stream = b"".join(frame(0x82, one) + frame(0x89, b"ping") for one in sent)
    protocol, pieces, messages, pings = opened(), Pieces(BYTES_MAX), [b""], 0
    while stream:
        cut = rng.choice((1, 2, 3, 7, 14, 1000, 200_000))
        protocol.receive_data(pieces.feed(stream[:cut]))
        stream = stream[cut:]
        for event in protocol.events_received():
            assert isinstance(event, Frame) and len(event.data) <= PIECE_BYTES
            if event.opcode is Opcode.PING:
                pings += 1
                continue
            messages[-1] += event.data
            if event.fin:
                messages.append(b"")
    assert messages[:-1] == sent and pings == len(sent)
    assert protocol.close_sent is None


def test_a_frame_beyond_the_limit_is_refused_by_its_head() -> None:
    protocol, pieces = opened(), Pieces(BYTES_MAX)
    protocol.receive_data(pieces.feed(struct.pack(">BBQ", 0x82, 0xFF, BYTES_MAX + 1) + b"keys"))
    protocol.events_received()
    assert protocol.close_sent is not None and protocol.close_sent.code == 1009


@pytest.mark.parametrize("first", [0xC2, 0x83])  # a reserved bit, an opcode nobody defined
def test_what_is_malformed_is_the_librarys_to_judge(first: int) -> None:
    protocol, pieces = opened(), Pieces(BYTES_MAX)
    protocol.receive_data(pieces.feed(frame(first, bytes(PIECE_BYTES * 2))))
    protocol.events_received()
    assert protocol.close_sent is not None and protocol.close_sent.code == 1002

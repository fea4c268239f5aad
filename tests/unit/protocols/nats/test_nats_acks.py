"""Acks of JetStream messages are collected by the wire: as if each were looked at, however the bytes are cut."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mainstem.protocols.nats import commands
from mainstem.protocols.nats.wire import Inbound, RouteTable

NUMBERS = st.sampled_from([b"1", b"22", b"0", b"x", b"", b"1792345678901234567", b"9792345678901234567"])
NAMES = st.sampled_from([b"s", b"stream", b"other", b""])
TOKENS = st.tuples(NAMES, NAMES, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from([b"0", b"7", b"1.2", b""]))
SUBJECTS = TOKENS.map(lambda tokens: b".".join([b"$JS", b"ACK", *tokens])) | st.sampled_from(
    [b"$JS.ACK.s", b"$JS.API.INFO", b"a"]
)
BODIES = st.sampled_from([b"", b"+ACK", b"+OK", b"-NAK", b"+ACKx"])
REPLIES = st.sampled_from([b"", b"", b"r "])
ACKS = st.lists(st.tuples(SUBJECTS, REPLIES, BODIES), max_size=8)


class Connection:
    def __init__(self, together: bool) -> None:
        self.together, self.found = together, list[Any]()

    def takes_acks(self, front: bytes) -> bool:
        return self.together

    def on_acks(self, front: bytes, offsets: array[int], told: array[int]) -> None:
        assert [told[at + 1] - 1 for at in range(0, len(told), 4)] == list(offsets)
        self.found += [(front, *told[at : at + 4]) for at in range(0, len(told), 4)]


class Publisher:
    def __init__(self) -> None:
        self.routes = RouteTable(lambda subject: (None, 1, 0, 0))
        self.gates: dict[bytes, Any] = {}

    def check(self) -> bool:
        return True


def is_number(token: bytes) -> bool:
    return token.isdigit() and len(token) <= 18 + token.startswith(b"1")


def wanted(subject: bytes, reply: bytes, body: bytes) -> tuple[Any, ...]:
    tokens = subject.split(b".")
    numbers = tokens[4:8]
    plain = subject.startswith(b"$JS.ACK.") and len(subject) >= 16 and len(tokens) == 9 and not reply
    if plain and body in (b"", b"+ACK", b"+OK") and all(is_number(one) for one in numbers):
        return (b".".join(tokens[:4]) + b".", *(int(one) for one in numbers))
    return (commands.PUB, subject, reply.strip(), b"", body)


@given(acks=ACKS, size=st.integers(1, 70), together=st.booleans())
def test_acks_come_together_and_in_their_place(
    acks: list[tuple[bytes, bytes, bytes]], size: int, together: bool
) -> None:
    data = b"".join(b"PUB %b %b%d\r\n%b\r\n" % (*one[:2], len(one[2]), one[2]) for one in acks)
    connection, inbound = Connection(together), Inbound(64)
    inbound.connection, inbound.publisher = connection, Publisher()
    for at in range(0, len(data), size):
        inbound.receive(data[at : at + size])
        while (command := inbound.next(0)) is not None:
            connection.found.append(command)
    if together:
        assert connection.found == [wanted(*one) for one in acks]
    else:
        assert connection.found == [(commands.PUB, one[0], one[1].strip(), b"", one[2]) for one in acks]

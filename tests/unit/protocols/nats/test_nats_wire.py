"""The compiled reader of NATS's wire beside its oracle, however the bytes are cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.protocols.nats.commands import WireError
from mainstem.protocols.nats.wire import Inbound
from tests.oracles.nats_wire import parse

PAYLOAD_MAX = 64
WORDS = st.sampled_from([b"a", b"a.b", b">", b"1", b"12", b"x", b"70", b"-1", b"", b"9" * 13])
VERBS = st.sampled_from([b"PUB", b"hpub", b"Sub", b"UNSUB", b"PING", b"PONG", b"CONNECT", b"+OK", b"NO", b""])
ENDS = st.sampled_from([b"\r\n", b"\n", b"\r\r\n"])
PUBLISHED = st.builds(lambda data: b"PUB a r %d\r\n%b\r\n" % (len(data), data), st.binary(max_size=20))
HEADED = st.builds(
    lambda head, data: b"HPUB a %d %d\r\n%b%b\r\n" % (len(head), len(head) + len(data), head, data),
    st.binary(max_size=9),
    st.binary(max_size=9),
)
LINES = st.builds(lambda verb, words, end: b" ".join([verb, *words]) + end, VERBS, st.lists(WORDS, max_size=4), ENDS)
STREAMS = st.lists(PUBLISHED | HEADED | LINES | st.binary(max_size=6), max_size=8).map(b"".join)


def told(pieces: list[bytes]) -> tuple[list[tuple[Any, ...]], str | None]:
    inbound, found = Inbound(PAYLOAD_MAX), []
    for piece in pieces:
        inbound.receive(piece)
        try:
            while (command := inbound.next(0)) is not None:
                found.append(command)
        except WireError as error:
            return found, error.text
    return found, None


@given(data=STREAMS, size=st.integers(1, 9))
def test_it_answers_like_the_oracle_however_the_bytes_are_cut(data: bytes, size: int) -> None:
    commands, rest = parse(data, PAYLOAD_MAX)
    wanted = commands, rest if isinstance(rest, str) else None
    assert told([data]) == wanted
    assert told([data[at : at + size] for at in range(0, len(data), size)]) == wanted


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    inbound = Inbound(PAYLOAD_MAX)
    inbound.receive(b"SUB " + b"a" * 4000)
    assert inbound.next(0) is None
    inbound.receive(b"a" * 200)
    with pytest.raises(WireError, match="maximum control line exceeded"):
        inbound.next(0)

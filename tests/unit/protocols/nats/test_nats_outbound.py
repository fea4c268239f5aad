"""The compiled writer of messages beside its oracle."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mainstem.protocols.nats.outbound import Encoder, Outbound, Subscription
from tests.oracles.nats_wire import message

WORDS = st.sampled_from([b"a", b"a.b.c", b"s" * 300])
HEADERS = st.sampled_from([b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: " + b"v" * 2000 + b"\r\n\r\n"])


class Connection:
    """What the writer asks of one."""

    def __init__(self) -> None:
        self.dropped: list[Subscription] = []

    def mark_dirty(self, one: Any) -> None:
        """Its ticker's."""

    def drop(self, one: Subscription) -> None:
        one.closed = True
        self.dropped.append(one)


def outbound_of(connection: Connection, *, headers: bool) -> Outbound:
    outbound = Outbound(connection, connection, Encoder(lambda record: None))
    outbound.headers = headers
    return outbound


@given(
    subject=WORDS,
    reply=WORDS | st.just(b""),
    headers=HEADERS,
    payload=st.binary(max_size=40) | st.integers(990, 1010).map(bytes),
    taken=st.booleans(),
)
def test_it_writes_like_the_oracle(subject: bytes, reply: bytes, headers: bytes, payload: bytes, taken: bool) -> None:
    connection = Connection()
    outbound = outbound_of(connection, headers=taken)
    sent = b""
    for sid in (b"1", b"22", b"3"):
        one = Subscription(connection, outbound, sid, b"a")
        outbound.write_message(one, subject, reply, headers, payload)
        sent += message(subject, sid, reply, headers if taken else b"", payload)
        assert one.delivered == 1
    assert outbound.take() == sent
    assert outbound.take() == b""


def test_the_last_of_a_limited_subscription_ends_it() -> None:
    connection = Connection()
    outbound = outbound_of(connection, headers=True)
    one = Subscription(connection, outbound, b"1", b"a")
    one.limit = 2
    outbound.write_message(one, b"a", b"", b"", b"x")
    assert not connection.dropped
    outbound.write_message(one, b"a", b"", b"", b"y")
    assert connection.dropped == [one]

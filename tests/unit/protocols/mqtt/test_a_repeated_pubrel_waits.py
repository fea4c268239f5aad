"""PUBCOMP says that the release is kept for good: the answer to a repetition must not say so first."""

from __future__ import annotations

import pytest

from mainstem.log.gather import Ticket
from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import encode_text
from tests.oracles.mqtt_halves import Bench

PUBLISH_9 = encode_packet(3, 4, encode_text(b"known/x") + b"\0\x09")
PUBREC_9, PUBREL_9, PUBCOMP_9 = b"\x50\x02\0\x09", b"\x62\x02\0\x09", b"\x70\x02\0\x09"
NOT_FOUND_9 = b"\x70\x03\0\x09\x92"


@pytest.mark.parametrize("way", ["plain", "compiled"])
@pytest.mark.parametrize(("version", "again"), [(4, PUBCOMP_9), (5, NOT_FOUND_9)])
@pytest.mark.parametrize("reads", [1, 2])
def test_until_the_release_is_durable(way: str, version: int, again: bytes, reads: int) -> None:
    bench = Bench(way, version=version, durable=True)
    inbound, outbound = bench.inbound, bench.outbound
    bench.feed([PUBLISH_9 if version == 4 else encode_packet(3, 4, encode_text(b"known/x") + b"\0\x09\0")])
    bench.settle()
    assert outbound.take() == PUBREC_9
    ticket = Ticket(None)  # type: ignore[arg-type]
    inbound.receive(PUBREL_9 * (3 - reads))
    assert inbound.next(0) is None
    inbound.complete(ticket)
    if reads == 2:
        inbound.receive(PUBREL_9)
        assert inbound.next(0) is None
    assert outbound.take() == b""
    ticket.release()
    assert outbound.take() == PUBCOMP_9 + again
    assert inbound.unacked == 0

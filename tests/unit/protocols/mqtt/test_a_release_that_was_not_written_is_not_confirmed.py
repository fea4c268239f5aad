"""PUBCOMP says that the release is kept for good. Where its journal write failed the client hears nothing of the kind."""

from __future__ import annotations

import pytest

from mainstem.log.gather import Ticket
from mainstem.model.errors import DiskFull
from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import encode_text
from tests.oracles.mqtt_halves import Bench

PUBREC_9, PUBREL_9 = b"\x50\x02\0\x09", b"\x62\x02\0\x09"


def publish_9(version: int) -> bytes:
    return encode_packet(3, 4, encode_text(b"known/x") + b"\0\x09" + (b"\0" if version == 5 else b""))


@pytest.mark.parametrize("way", ["plain", "compiled"])
@pytest.mark.parametrize("version", [4, 5])
def test_and_its_identifier_stays_pending(way: str, version: int) -> None:
    bench = Bench(way, version=version, durable=True)
    bench.feed([publish_9(version)])
    bench.settle()
    assert bench.outbound.take() == PUBREC_9
    ticket = Ticket(None)  # type: ignore[arg-type]
    bench.inbound.receive(PUBREL_9)
    assert bench.inbound.next(0) is None
    bench.inbound.complete(ticket)
    ticket.fail(DiskFull("no space"))
    assert bench.outbound.take() == b""
    assert bench.failed == ["no space"]
    assert bench.inbound.received_ids() == [9]


@pytest.mark.parametrize("way", ["plain", "compiled"])
@pytest.mark.parametrize("version", [4, 5])
def test_a_publish_that_was_not_written_leaves_its_identifier_free(way: str, version: int) -> None:
    bench = Bench(way, version=version, durable=True)
    bench.feed([publish_9(version)])
    bench.settle(DiskFull("no space"))
    assert bench.outbound.take() == (b"" if version == 4 else b"\x50\x03\0\x09\x97")
    assert bench.failed == (["no space"] if version == 4 else [])
    assert bench.inbound.received_ids() == []

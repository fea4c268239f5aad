"""They are refused by their SUBACK, whatever stands in them; the connection goes on."""

import pytest

from mainstem.protocols.mqtt.wire.properties import Property
from tests.protocol.mqtt.raw import Raw


@pytest.mark.parametrize(
    "offset",
    [
        "\N{SUPERSCRIPT TWO}",
        "ts:\N{SUPERSCRIPT TWO}",
        "ts:99999999999999999999",
        "ts:9999-12-31T23:59:59Z",
        "stamp:99999999999999999999",
        "99999999999999999999",
        "-1",
    ],
)
def test_streams_from_no_offset_or_time(port: int, offset: str) -> None:
    with Raw.connected(port, version=5) as client:
        assert client.subscribe((f"$stream/@{offset}/a", 0)) == [0x83]
        properties = {Property.USER_PROPERTY: [(b"stream-offset", offset.encode())]}
        assert client.subscribe(("$stream/a", 0), properties=properties) == [0x83]
        client.ping()


@pytest.mark.parametrize("kind", ["$share", "$queue"])
def test_names_longer_than_any_protocol_has_them(port: int, kind: str) -> None:
    with Raw.connected(port, version=5) as client:
        assert client.subscribe((f"{kind}/{'n' * 256}/a", 0), (f"{kind}/{'n' * 255}/a", 0)) == [0x8F, 0]


def test_an_order_that_queues_do_not_have(port: int) -> None:
    with Raw.connected(port, version=5) as client:
        properties = {Property.USER_PROPERTY: [(b"queue-order", b"alphabet")]}
        assert client.subscribe(("$queue/no-such-order/a", 1), properties=properties) == [0x83]

import pytest

from mainstem.protocols.mqtt.wire.properties import Properties, Property
from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw, publish_packet


@pytest.mark.parametrize("properties", [{}, {Property.USER_PROPERTY: [(b"ms-key", b"k")]}])
def test_as_quota_exceeded_whatever_its_properties(properties: Properties) -> None:
    """0x95 (Packet too large) is no reason that PUBACK knows."""
    with (
        Broker("topics.message_bytes_max=1MiB") as broker,
        Raw.connected(broker.mqtt_port, version=5) as client,
    ):
        client.send(publish_packet("large", b"x" * (2**20 + 1), qos=1, version=5, properties=properties))
        kind, body = client.packet()
        assert (kind, body[:3]) == (0x40, b"\x00\x01\x97")
        client.ping()

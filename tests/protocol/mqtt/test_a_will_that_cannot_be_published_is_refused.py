"""CONNECT is when its client can still be told; later the will would be lost silently."""

import pytest

from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw, connect_packet, unique
from tests.users import add_users


@pytest.mark.parametrize("topic", ["", "a/+", "a/#", "a" * 5000, "a/" * 500])
def test_for_its_topic(port: int, topic: str) -> None:
    with Raw(port, version=5) as new, Raw(port) as old:
        new.send(connect_packet(unique("will"), version=5, will=(topic, b"x", 0, False)))
        first, body = new.packet()
        assert (first, body[1]) == (0x20, 0x90)
        new.closed()
        old.send(connect_packet(unique("will"), will=(topic, b"x", 0, False)))
        assert old.closed() == b"\x20\x02\x00\x05"


def test_for_a_response_topic_with_wildcards(port: int) -> None:
    with Raw(port, version=5) as client:
        properties = {Property.RESPONSE_TOPIC: b"a/#"}
        client.send(connect_packet(unique("will"), version=5, will=("a", b"", 0, False), will_properties=properties))
        answer = client.closed()
        assert (answer[0], answer[3]) == (0x20, 0x82)  # CONNACK: protocol error


def test_also_after_a_login_that_took_time() -> None:
    with Broker() as broker:
        add_users(broker)
        with Raw(broker.mqtt_port, version=5) as client:
            will = ("a/+", b"x", 0, False)
            client.send(connect_packet("will", version=5, will=will, username="root", password=b"secret"))
            first, body = client.packet()
            assert (first, body[1]) == (0x20, 0x90)
            client.closed()

"""[MQTT-3.2.2-19], [MQTT-3.9.2-1] and [MQTT-3.14.2-3]: rather no words than a packet beyond Maximum Packet Size."""

import pytest

from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw, connect_packet, publish_packet, subscribe_packet, unique
from tests.users import add_users


@pytest.mark.parametrize(("bytes_max", "spoken"), [(20, False), (2000, True)])
def test_of_connack_suback_and_disconnect(port: int, bytes_max: int, spoken: bool) -> None:
    properties = {Property.MAXIMUM_PACKET_SIZE: bytes_max}
    with Raw(port, version=5) as client:
        packet = connect_packet(unique("will"), version=5, will=("a/+", b"", 0, False), properties=properties)
        client.send(packet)
        refusal = client.closed()
        assert refusal[3] == 0x90 and (len(refusal) > 20) is spoken
    with Raw.connected(port, version=5, properties=properties) as client:
        client.send(subscribe_packet(("a/#/b", 0), version=5))
        first, body = client.packet()
        assert first == 0x90 and body[-1] == 0x8F and (len(body) > 20) is spoken
        client.send(publish_packet("a/+", version=5))
        goodbye = client.closed()
        assert goodbye[2] == 0x90 and (len(goodbye) > 20) is spoken


def test_of_a_login_with_a_name_longer_than_any_reason() -> None:
    with Broker() as broker:
        add_users(broker)
        with Raw(broker.mqtt_port, version=5) as client:
            client.send(connect_packet("c", version=5, username="\x01" * 60_000, password=b"x"))
            first, body = client.packet()
            assert (first, body[1]) == (0x20, 0x86)


def test_a_client_that_takes_no_connack_gets_none_and_takes_nobodys_place(port: int) -> None:
    client_id = unique("tiny")
    with Raw.connected(port, client_id, version=5) as first:
        for bytes_max in (1, 4, 8):
            with Raw(port, version=5) as tiny:
                properties = {Property.MAXIMUM_PACKET_SIZE: bytes_max}
                tiny.send(connect_packet(client_id, version=5, properties=properties))
                assert tiny.closed() == b""
        first.ping()
    with Raw(port, version=5) as tiny:
        will = ("a/+", b"", 0, False)
        tiny.send(connect_packet(client_id, version=5, will=will, properties={Property.MAXIMUM_PACKET_SIZE: 4}))
        assert tiny.closed() == b""


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(
    ("properties", "spoken"),
    [
        ({}, True),
        ({Property.MAXIMUM_PACKET_SIZE: 30}, False),
        ({Property.REQUEST_PROBLEM_INFORMATION: 0}, False),
    ],
)
def test_a_refused_publish_is_answered_in_words(
    port: int, qos: int, properties: dict[Property, int], spoken: bool
) -> None:
    with Raw.connected(port, version=5, properties=properties) as client:
        client.send(publish_packet("$SYS/mine", b"x", qos=qos, packet_id=7, version=5))
        first, body = client.packet()
        assert (first, body[:3]) == (0x30 + 0x10 * qos, b"\0\x07\x90")
        assert (b"nobody publishes to such a name" in body) is spoken
        assert spoken or body[3:] == b""
        client.send(publish_packet("fine", b"x", qos=qos, packet_id=7, version=5))
        assert client.packet() == (0x30 + 0x10 * qos, b"\0\x07")

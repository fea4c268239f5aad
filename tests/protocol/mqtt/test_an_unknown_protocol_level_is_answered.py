from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import encode_text
from tests.protocol.mqtt.raw import Raw


def connect(name: bytes, level: int) -> bytes:
    return encode_packet(1, 0, encode_text(name), bytes((level, 2, 0, 60)), encode_text(b"someone"))


def test_below_5_with_return_code_1(port: int) -> None:
    with Raw(port) as client:
        client.send(connect(b"MQTT", 2))
        assert client.closed() == b"\x20\x02\x00\x01"


def test_above_5_with_reason_0x84(port: int) -> None:
    with Raw(port) as client:
        client.send(connect(b"MQTT", 6))
        said = client.closed()
        assert said[0] == 0x20 and said[3] == 0x84


def test_mqtt_3_1_is_spoken(port: int) -> None:
    with Raw.connected(port, version=3) as client:
        client.ping()

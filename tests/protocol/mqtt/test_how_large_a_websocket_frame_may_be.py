import pytest
from websockets.exceptions import ConnectionClosed

from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import connect_packet, publish_packet, unique
from tests.protocol.mqtt.test_mqtt_over_websocket import open_socket

MIB = 1 << 20


def test_as_large_as_the_largest_message(broker: Broker) -> None:
    with open_socket(broker) as socket:
        socket.send(connect_packet(unique("ws")))
        assert socket.recv(timeout=5) == b"\x20\x02\x00\x00"
        socket.send(publish_packet(unique("ws"), b"x" * (16 * MIB), qos=1))
        assert socket.recv(timeout=20) == b"\x40\x02\x00\x01"


def test_and_before_connect_no_larger_than_a_connect(broker: Broker) -> None:
    """A frame of 8 MiB is announced; its first bytes are enough to be closed."""
    with open_socket(broker) as socket:
        socket.socket.sendall(b"\x82\xff" + (8 * MIB).to_bytes(8, "big") + bytes(4) + b"x" * (MIB // 4))
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=5)

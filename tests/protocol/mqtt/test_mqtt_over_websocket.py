import threading

import paho.mqtt.client as paho
import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw, connect_packet, publish_packet, subscribe_packet, unique

MQTT = [Subprotocol("mqtt")]


def open_socket(broker: Broker, path: str = "/mqtt", **options: object) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{broker.ws_port}{path}", subprotocols=MQTT, **options)  # type: ignore[arg-type]


def test_packets_need_not_align_with_frames(broker: Broker) -> None:
    topic = unique("ws")
    with open_socket(broker) as socket:
        assert socket.subprotocol == "mqtt"
        data = connect_packet(unique("ws")) + subscribe_packet((topic, 0)) + publish_packet(topic, b"hello")
        for at in range(0, len(data), 3):
            socket.send(data[at : at + 3])
        expected = b"\x20\x02\x00\x00" + b"\x90\x03\x00\x01\x00" + publish_packet(topic, b"hello")
        got = b""
        while len(got) < len(expected):
            piece = socket.recv(timeout=5)
            assert isinstance(piece, bytes)
            got += piece
        assert got == expected


def test_clients_of_both_doors_share_everything(broker: Broker) -> None:
    topic, arrived, seen = unique("ws"), threading.Event(), []
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, transport="websockets")
    client.ws_set_options(path="/mqtt")

    def on_message(_client: object, _data: object, message: paho.MQTTMessage) -> None:
        seen.append(message.payload)
        arrived.set()

    subscribed = threading.Event()
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = on_message
    client.connect("127.0.0.1", broker.ws_port)
    client.loop_start()
    client.subscribe(topic, qos=1)
    assert subscribed.wait(5)
    with Raw.connected(broker.mqtt_port) as publisher:
        publisher.publish(topic, b"x" * 100_000, qos=1)
    assert arrived.wait(5)
    client.disconnect()
    client.loop_stop()
    assert seen == [b"x" * 100_000]


def test_text_frames_close(broker: Broker) -> None:
    with open_socket(broker) as socket:
        socket.send("text")
        with pytest.raises(ConnectionClosedError) as caught:
            socket.recv(timeout=5)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1003


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/elsewhere", {}),
        ("/mqtt", {"origin": "http://evil.example"}),
        ("/mqtt", {"origin": "null"}),
    ],
)
def test_foreign_pages_hosts_and_paths_are_refused(broker: Broker, path: str, options: dict[str, object]) -> None:
    with pytest.raises(InvalidStatus) as caught:
        open_socket(broker, path, **options)
    assert caught.value.response.status_code == 403


def test_a_name_that_was_pointed_at_us_is_refused(broker: Broker) -> None:
    with Raw(broker.ws_port) as client:
        client.send(
            b"GET /mqtt HTTP/1.1\r\nHost: rebound.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert client.closed().startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/mqtt", "Host: [::1"),
        ("/mqtt", "Host: localhost\r\nOrigin: http://[::1"),
        ("//[::1", "Host: localhost"),
        ("/mqtt", "Host: localhost\r\nHost: localhost"),
        ("/mqtt", "Host: localhost\r\nOrigin: http://localhost\r\nOrigin: http://localhost"),
    ],
)
def test_a_request_that_is_none_is_refused_and_no_error_of_ours(
    broker: Broker, path: str, headers: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Raw(broker.ws_port) as client:
        client.send(
            f"GET {path} HTTP/1.1\r\n{headers}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        assert client.closed().split(b" ")[1] in (b"400", b"403")
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_our_own_and_configured_origins_are_welcome() -> None:
    with Broker("mqtt.ws_origins=https://app.example") as broker:
        for origin in ("http://localhost:7070", "https://app.example"):
            open_socket(broker, origin=origin).close()


def test_a_violation_is_told_before_the_socket_closes(broker: Broker) -> None:
    with open_socket(broker) as socket:
        socket.send(connect_packet(unique("ws"), version=5))
        socket.recv(timeout=5)
        socket.send(b"\xc1\x00")
        said = socket.recv(timeout=5)
        assert isinstance(said, bytes)
        assert (said[0], said[2]) == (0xE0, 0x81)

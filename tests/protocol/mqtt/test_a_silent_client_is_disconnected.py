from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw, unique


def test_after_one_and_a_half_times_its_keep_alive(port: int) -> None:
    topic = unique("silent")
    with Raw.connected(port) as watcher:
        watcher.subscribe((topic, 0))
        with Raw.connected(port, version=5, keep_alive=1, will=(topic, b"silent", 0, False)) as client:
            said = client.closed()
            assert said[0] == 0xE0 and said[2] == 0x8D
            assert watcher.message().payload == b"silent"


def test_who_never_sends_connect_is_disconnected() -> None:
    with Broker("limits.login_ms=1s") as broker, Raw(broker.mqtt_port) as client:
        assert client.closed() == b""


def test_a_keep_alive_longer_than_the_server_grants_is_told() -> None:
    with (
        Broker("mqtt.keep_alive_max_s=60") as broker,
        Raw.connected(broker.mqtt_port, version=5, keep_alive=120) as client,
    ):
        assert b"\x13\x00\x3c" in client.connack  # Server Keep Alive

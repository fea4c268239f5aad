from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import encode_text
from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw, subscribe_packet


def test_also_when_it_ends_before_the_first_were_told() -> None:
    with Broker("mqtt.sys_interval_ms=50ms") as broker, Raw.connected(broker.mqtt_port) as client:
        client.send(
            subscribe_packet(("$SYS/#", 0), packet_id=1)
            + encode_packet(10, 2, b"\0\2", encode_text(b"$SYS/#"))
            + subscribe_packet(("$SYS/broker/uptime", 0), packet_id=3)
        )
        assert [client.packet()[0] for _ in range(3)] == [0x90, 0xB0, 0x90]
        for _ in range(2):
            assert client.message().topic == "$SYS/broker/uptime"

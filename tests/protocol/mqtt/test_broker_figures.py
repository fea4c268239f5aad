from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw

WANTED = {
    "$SYS/broker/version",
    "$SYS/broker/uptime",
    "$SYS/broker/clients/connected",
    "$SYS/broker/clients/total",
    "$SYS/broker/messages/received",
    "$SYS/broker/messages/sent",
    "$SYS/broker/bytes/received",
    "$SYS/broker/subscriptions/count",
    "$SYS/broker/retained messages/count",
    "$SYS/broker/load/messages/received/1min",
}


def test_are_told_under_mosquittos_names_at_once_and_every_interval() -> None:
    with Broker("mqtt.sys_interval_ms=300ms") as broker, Raw.connected(broker.mqtt_port) as client:
        client.subscribe(("$SYS/#", 1))
        seen: dict[str, bytes] = {}
        while not set(seen) >= WANTED:
            message = client.message()
            assert message.retain and message.qos == 0
            seen[message.topic] = message.payload
        while (message := client.message()).retain or message.topic != "$SYS/broker/messages/sent":
            pass
        assert int(message.payload) > 0


def test_no_wildcard_reaches_them() -> None:
    with Broker("mqtt.sys_interval_ms=50ms") as broker, Raw.connected(broker.mqtt_port) as client:
        client.subscribe(("#", 0), ("+/broker/#", 0))
        client.publish("end", b"x")
        assert client.message().topic == "end"

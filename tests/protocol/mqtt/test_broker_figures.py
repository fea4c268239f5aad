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


def test_are_told_at_once_only_to_those_who_ask_for_what_is_retained() -> None:
    never, new_only, as_published = 2 << 4, 1 << 4, 8
    with Broker("mqtt.sys_interval_ms=1h") as broker, Raw.connected(broker.mqtt_port, version=5) as client:
        client.subscribe(("$SYS/broker/uptime", never))
        client.nothing_more()
        client.subscribe(("$SYS/broker/version", new_only))
        assert client.message().retain
        client.subscribe(("$SYS/broker/version", new_only))
        client.nothing_more()
        client.subscribe(("$SYS/broker/version", as_published))
        assert client.message().retain
    with Broker("mqtt.sys_interval_ms=50ms") as broker, Raw.connected(broker.mqtt_port, version=5) as client:
        client.subscribe(("$SYS/broker/uptime", never | as_published))
        assert client.message().retain
        client.subscribe(("$SYS/broker/uptime", never))
        while client.message().retain:
            pass

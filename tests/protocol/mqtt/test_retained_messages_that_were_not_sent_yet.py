"""A session whose client leaves in the middle of them is sent the rest when it comes back [MQTT-4.1.0-1]."""

import pytest

from mainstem.protocols.mqtt.wire.properties import Property
from tests.conftest import StartBroker
from tests.protocol.mqtt.raw import Raw, publish_packet

SESSION: dict[str, object] = {
    "version": 5,
    "clean": False,
    "properties": {Property.SESSION_EXPIRY: 1000, Property.RECEIVE_MAXIMUM: 3},
}


@pytest.mark.parametrize("count", [12, 400])
def test_come_after_a_reconnect_and_a_restart(start_broker: StartBroker, count: int) -> None:
    broker = start_broker()
    with Raw.connected(broker.mqtt_port) as publisher:
        for n in range(count):
            publisher.send(publish_packet(f"kept/{n}", b"%d" % n, qos=1, packet_id=n + 1, retain=True))
        publisher.acks(count)
    expected = [b"%d" % n for n in range(count)]
    with Raw.connected(broker.mqtt_port, "reader", **SESSION) as reader:
        reader.subscribe(("kept/#", 1))
        got = [reader.message().payload for _ in range(3)]
        reader.disconnect()
    with Raw.connected(broker.mqtt_port, "reader", **SESSION) as reader:
        again = [reader.message() for _ in range(4)]
        got += [one.payload for one in again if one.payload not in got]
        assert all(one.retain for one in again)
        reader.disconnect()
    broker.restart()
    with Raw.connected(broker.mqtt_port, "reader", **SESSION) as reader:
        while len(got) < count:
            one = reader.message()
            assert one.retain
            got += [one.payload] if one.payload not in got else []
        assert sorted(got, key=int) == expected
        with Raw.connected(broker.mqtt_port) as publisher:
            publisher.publish("kept/0", b"live", qos=1)
        while (one := reader.message()).payload != b"live":
            assert one.dup
        reader.nothing_more()

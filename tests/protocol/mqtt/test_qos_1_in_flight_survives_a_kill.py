"""A QoS 1 delivery that was not acknowledged comes again under its identifier and with DUP, also after kill -9.

The broker is killed as soon as the client has its packets: nothing but what was written before they left is there then.
"""

from __future__ import annotations

import pytest

from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.testing import BrokerProcess
from tests.protocol.mqtt.raw import Raw, ack_packet

PERSISTENT: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 1000}}
Told = list[tuple[bytes, int, bool]]


def told(client: Raw, count: int) -> Told:
    got = [client.message(ack=False) for _ in range(count)]
    return [(one.payload, one.packet_id, one.dup) for one in got]


def publish(broker: BrokerProcess, *payloads: bytes) -> None:
    with Raw.connected(broker.mqtt_port) as publisher:
        for payload in payloads:
            publisher.publish("t", payload, qos=1)


def again(deliveries: Told) -> Told:
    return [(payload, packet_id, True) for payload, packet_id, _ in deliveries]


def test_what_was_delivered_live(broker_process: BrokerProcess) -> None:
    broker = broker_process
    with Raw.connected(broker.mqtt_port, "s", **PERSISTENT) as subscriber:
        subscriber.subscribe(("t", 1))
        publish(broker, b"1", b"2", b"3", b"4", b"5", b"6")
        first = told(subscriber, 6)
        for _, packet_id, _ in first[:3]:
            subscriber.send(ack_packet(4, packet_id))
        subscriber.ping()  # the acknowledgements are read, and may be forgotten by the kill: QoS 1 may come again
        broker.kill()
    broker.start()
    with Raw.connected(broker.mqtt_port, "s", **PERSISTENT) as subscriber:
        assert subscriber.session_present
        got = told(subscriber, 3)
        while got[-1][0] != b"6":
            got += told(subscriber, 1)
        assert got[-3:] == again(first[3:])
        assert got == again(first)[-len(got) :]
        subscriber.nothing_more()


@pytest.mark.parametrize("kills", [1, 2])
def test_what_was_caught_up_with_on_connecting(broker_process: BrokerProcess, kills: int) -> None:
    broker = broker_process
    with Raw.connected(broker.mqtt_port, "s", **PERSISTENT) as subscriber:
        subscriber.subscribe(("t", 1))
        subscriber.disconnect()
    publish(broker, b"a", b"b", b"c")
    with Raw.connected(broker.mqtt_port, "s", **PERSISTENT) as subscriber:
        first = told(subscriber, 3)
        broker.kill()
    for _ in range(kills):
        broker.start()
        with Raw.connected(broker.mqtt_port, "s", **PERSISTENT) as subscriber:
            assert told(subscriber, 3) == again(first)
            broker.kill()
    broker.start()
    with Raw.connected(broker.mqtt_port, "s", **PERSISTENT) as subscriber:
        assert told(subscriber, 3) == again(first)
        for _, packet_id, _ in first:
            subscriber.send(ack_packet(4, packet_id))
        publish(broker, b"d")
        assert [(payload, dup) for payload, _, dup in told(subscriber, 1)] == [(b"d", False)]


def test_of_two_sessions_each_keeps_its_own(broker_process: BrokerProcess) -> None:
    broker = broker_process
    with (
        Raw.connected(broker.mqtt_port, "one", **PERSISTENT) as one,
        Raw.connected(broker.mqtt_port, "two", **PERSISTENT) as two,
    ):
        one.subscribe(("t", 1), ("u", 1))
        with Raw.connected(broker.mqtt_port) as publisher:
            publisher.publish("u", b"only one", qos=1)
        assert [payload for payload, _, _ in told(one, 1)] == [b"only one"]
        two.subscribe(("t", 1))
        publish(broker, b"both")
        mine, yours = told(one, 1), told(two, 1)
        broker.kill()
    broker.start()
    with (
        Raw.connected(broker.mqtt_port, "one", **PERSISTENT) as one,
        Raw.connected(broker.mqtt_port, "two", **PERSISTENT) as two,
    ):
        assert told(one, 2)[1:] == again(mine)
        assert told(two, 1) == again(yours)
        one.nothing_more()
        two.nothing_more()

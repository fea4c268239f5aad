"""A QoS 2 publish whose client is gone before PUBREC is stored, and stored once when the client sends it again."""

from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.testing import BrokerProcess
from tests.conftest import StartBroker
from tests.protocol.mqtt.raw import Raw, ack_packet, publish_packet, unique

PERSISTENT: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 1000}}


def send_again(port: int, client_id: str, topic: str) -> None:
    with Raw.connected(port, client_id, **PERSISTENT) as publisher:
        assert publisher.session_present
        publisher.send(publish_packet(topic, b"x", qos=2, packet_id=7, dup=True, version=5))
        publisher.expect(ack_packet(5, 7))
        publisher.send(ack_packet(6, 7))
        publisher.expect(ack_packet(7, 7))


def test_are_not_stored_twice_when_it_was_lost_before_the_sync(broker_process: BrokerProcess) -> None:
    port = broker_process.mqtt_port
    with Raw.connected(port) as watcher:
        watcher.subscribe(("once/#", 0))
        for n in range(10):
            client_id, topic = unique("lost"), f"once/{n}"
            with Raw.connected(port, client_id, **PERSISTENT) as publisher:
                publisher.send(publish_packet(topic, b"x", qos=2, packet_id=7, version=5))
            assert watcher.message().topic == topic
            send_again(port, client_id, topic)
        watcher.nothing_more()


def test_are_not_stored_twice_when_it_comes_back_while_the_first_connection_stands(
    broker_process: BrokerProcess,
) -> None:
    port = broker_process.mqtt_port
    with Raw.connected(port) as watcher:
        watcher.subscribe(("once/#", 0))
        for n in range(10):
            client_id, topic = unique("lost"), f"once/{n}"
            with Raw.connected(port, client_id, **PERSISTENT) as publisher:
                publisher.send(publish_packet(topic, b"x", qos=2, packet_id=7, version=5))
                send_again(port, client_id, topic)
            assert watcher.message().topic == topic
        watcher.nothing_more()


def test_are_known_after_a_kill_that_comes_seconds_later(start_broker: StartBroker) -> None:
    broker = start_broker("mqtt.sys_interval_ms=500ms")
    with Raw.connected(broker.mqtt_port, "watch", **PERSISTENT) as watcher:
        watcher.subscribe(("once", 1))
    with Raw.connected(broker.mqtt_port, "p", **PERSISTENT) as publisher:
        publisher.send(publish_packet("once", b"x", qos=2, packet_id=7, version=5))
        publisher.expect(ack_packet(5, 7))
    with Raw.connected(broker.mqtt_port) as other:  # the broker's seconds go by, with something to write in each
        other.subscribe(("$SYS/broker/uptime", 0))
        first = int(other.message().payload.split()[0])
        while int(other.message().payload.split()[0]) < first + 4:
            other.send(publish_packet("other", b"x"))
    broker.kill()
    broker.start()
    send_again(broker.mqtt_port, "p", "once")
    with Raw.connected(broker.mqtt_port, "watch", **PERSISTENT) as watcher:
        assert watcher.message().payload == b"x"
        watcher.nothing_more()

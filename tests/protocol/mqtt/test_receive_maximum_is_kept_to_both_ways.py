from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw, ack_packet, publish_packet, unique


def test_no_more_is_sent_than_the_client_takes(port: int) -> None:
    topic = unique("receive")
    with (
        Raw.connected(port, version=5, properties={Property.RECEIVE_MAXIMUM: 2}) as subscriber,
        Raw.connected(port) as publisher,
    ):
        subscriber.subscribe((topic, 1))
        for n in range(6):
            publisher.publish(topic, b"%d" % n, qos=1)
        held = [subscriber.message(ack=False), subscriber.message(ack=False)]
        subscriber.nothing_more()
        got = [m.payload for m in held]
        while len(got) < 6:
            subscriber.send(ack_packet(4, held.pop(0).packet_id))
            held.append(subscriber.message(ack=False))
            got.append(held[-1].payload)
        assert got == [b"%d" % n for n in range(6)]


def test_qos_0_passes_while_the_window_is_full(port: int) -> None:
    topic = unique("receive")
    with (
        Raw.connected(port, version=5, properties={Property.RECEIVE_MAXIMUM: 1}) as subscriber,
        Raw.connected(port) as publisher,
    ):
        subscriber.subscribe((topic, 1))
        publisher.publish(topic, b"held", qos=1)
        held = subscriber.message(ack=False)
        publisher.publish(topic, b"passes", qos=0)
        assert subscriber.message().payload == b"passes"
        subscriber.send(ack_packet(4, held.packet_id))
        subscriber.nothing_more()


def test_a_client_that_sends_more_than_the_broker_takes_is_disconnected() -> None:
    with Broker("mqtt.receive_max=3") as broker, Raw.connected(broker.mqtt_port, version=5) as client:
        for packet_id in (1, 2, 3):
            client.send(publish_packet("t", qos=2, packet_id=packet_id, version=5))
            client.expect(ack_packet(5, packet_id))
        client.send(publish_packet("t", qos=2, packet_id=4, version=5))
        said = client.closed()
        assert said[0] == 0xE0 and said[2] == 0x93


def test_a_released_identifier_frees_its_place() -> None:
    with Broker("mqtt.receive_max=1") as broker, Raw.connected(broker.mqtt_port, version=5) as client:
        for packet_id in (1, 2, 3):
            client.publish("t", qos=2, packet_id=packet_id)

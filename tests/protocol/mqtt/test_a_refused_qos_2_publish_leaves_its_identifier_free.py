"""A publish that closed the connection was not received: neither its repetition nor another message is taken for one."""

from mainstem.protocols.mqtt.wire.properties import Property
from tests.protocol.mqtt.raw import Raw, ack_packet, publish_packet, unique


def test_for_the_next_message_of_the_session(port: int) -> None:
    client_id, topic = unique("refused"), unique("next")
    options: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 100}}
    with Raw.connected(port, client_id, **options) as publisher:
        publisher.send(publish_packet("with/+", b"x", qos=2, packet_id=7, version=5))
        assert publisher.closed()[2] == 0x90
    with Raw.connected(port) as watcher, Raw.connected(port, client_id, **options) as publisher:
        watcher.subscribe((topic, 0))
        publisher.send(publish_packet(topic, b"x", qos=2, packet_id=7, version=5))
        publisher.expect(ack_packet(5, 7))
        assert watcher.message().payload == b"x"


def test_so_that_its_repetition_is_refused_too(port: int) -> None:
    client_id = unique("refused")
    for _ in range(2):
        with Raw.connected(port, client_id, clean=False) as publisher:
            publisher.send(publish_packet("$SYS/broker/mine", b"x", qos=2, packet_id=7))
            assert publisher.closed() == b""

import time

from mainstem.broker.topics.reading import PartitionReader
from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw, publish_packet, unique

NO_TIMES = (b"-5", b"soon", b"", b"1.5", b"9" * 19)


def test_key_and_event_time_are_the_records_and_come_back_as_they_went(broker: Broker) -> None:
    topic = unique("meaning")
    pairs = [(b"ms-key", b"device-7"), (b"ms-ts", b"1700000000123456"), (b"ms-own", b"client's")]
    port = broker.mqtt_port
    with Raw.connected(port, version=5) as subscriber, Raw.connected(port, version=5) as publisher:
        subscriber.subscribe((topic, 1))
        publisher.publish(topic, b"x", qos=1, properties={Property.USER_PROPERTY: pairs})
        properties = subscriber.message().properties
        assert all(value in properties for _, value in pairs)
    app = broker.app
    assert app is not None
    namespace = app.broker.namespace("/")
    found = namespace.find_topic(topic.encode())
    assert found is not None
    record = PartitionReader(found.partitions[0], namespace.topic_of).records(0, 1 << 20)[0][-1]
    assert (record.key, record.time_ms) == (b"device-7", 1_700_000_000_123)


def test_times_that_are_none_are_refused(port: int) -> None:
    far = str(time.time_ns() // 1_000_000 + 367 * 86_400_000).encode()
    wrong = [(name, value) for name in (b"ms-ts", b"ms-expires-at", b"ms-deliver-at") for value in NO_TIMES]
    with Raw.connected(port, version=5) as publisher:
        for pair in [*wrong, (b"ms-deliver-at", far)]:
            properties = {Property.USER_PROPERTY: [pair]}
            publisher.send(publish_packet("t", b"x", qos=1, packet_id=3, version=5, properties=properties))
            kind, body = publisher.packet()
            assert (kind, body[:3]) == (0x40, b"\x00\x03\x83")

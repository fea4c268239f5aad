from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw


def test_and_gets_what_its_other_subscriptions_missed() -> None:
    options: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 100}}
    with Broker() as broker:
        assert broker.app is not None and broker.loop is not None
        port, queues = broker.mqtt_port, broker.app.broker.queues.of(broker.app.broker.namespace("/"))
        with Raw.connected(port) as maker, Raw.connected(port, "reader", **options) as reader:
            maker.subscribe(("$queue/gone/work", 1))
            assert reader.subscribe(("$queue/gone", 1), ("other", 1)) == [1, 1]
            reader.disconnect()
        queue = queues.find("gone")
        assert queue is not None
        broker.loop.call_soon_threadsafe(queues.delete, queue)
        with Raw.connected(port) as publisher:
            publisher.publish("other", b"missed", qos=1)
        for _ in range(2):
            with Raw.connected(port, "reader", **options) as reader:
                assert reader.message(ack=False).payload == b"missed"
                reader.nothing_more()

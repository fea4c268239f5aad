from pathlib import Path

from mainstem.testing.broker import Broker
from tests.live_copies import copy_live
from tests.protocol.mqtt.raw import Raw


def test_though_it_never_got_a_message(tmp_path: Path) -> None:
    """Else it would look through all that was ever stored, and keep retention from all of it."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    with Broker(engine="segment", data=data) as broker, Raw.connected(broker.mqtt_port) as publisher:
        publisher.publish("t", b"before it was", qos=1)
        with Raw.connected(broker.mqtt_port, "here", clean=False) as client:
            client.subscribe(("t", 1))
            copy_live(data, copy)  # what a kill leaves
        assert broker.app is not None
        before = next(iter(broker.app.servers["mqtt"].service.sessions)).subscriptions[b"t"].start
    with Broker(engine="segment", data=copy) as broker, Raw.connected(broker.mqtt_port):
        assert broker.app is not None
        assert next(iter(broker.app.servers["mqtt"].service.sessions)).position == before > 0

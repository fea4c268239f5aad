"""What a client was promised outlives the process, however it ends."""

import contextlib
import itertools
import threading
import time

import pytest

from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.testing import BrokerProcess
from tests.conftest import StartBroker
from tests.protocol.mqtt.raw import Message, Raw, ack_packet, publish_packet

PERSISTENT: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 1000}}


def end(broker: BrokerProcess, how: str) -> None:
    if how == "stop":
        broker.stop()
    else:
        broker.kill()
    broker.start()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_sessions_subscriptions_and_what_they_missed(broker_process: BrokerProcess, how: str) -> None:
    broker = broker_process
    with Raw.connected(broker.mqtt_port, "s", **PERSISTENT) as subscriber:
        subscriber.subscribe(("a/#", 1), ("b", 2))
        subscriber.disconnect()
    with Raw.connected(broker.mqtt_port) as publisher:
        publisher.publish("a/1", b"one", qos=1)
        publisher.publish("b", b"two", qos=2)
    end(broker, how)
    with Raw.connected(broker.mqtt_port) as publisher:
        publisher.publish("a/2", b"three", qos=1)
    with Raw.connected(broker.mqtt_port, "s", **PERSISTENT) as subscriber:
        assert subscriber.session_present
        assert [(m.payload, m.qos) for m in (subscriber.message() for _ in range(3))] == [
            (b"one", 1),
            (b"two", 2),
            (b"three", 1),
        ]
        subscriber.nothing_more()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_retained_messages_with_all_their_properties(broker_process: BrokerProcess, how: str) -> None:
    broker = broker_process
    properties = {Property.CONTENT_TYPE: b"text/plain", Property.USER_PROPERTY: [(b"k", b"v")]}
    with Raw.connected(broker.mqtt_port, version=5) as publisher:
        publisher.publish("keep/1", b"kept", qos=1, retain=True, properties=properties)
        publisher.publish("keep/2", b"cleared", qos=1, retain=True)
        publisher.publish("keep/2", b"", qos=1, retain=True)
        publisher.publish("keep/3", b"old", qos=1, retain=True)
        publisher.publish("keep/3", b"new", qos=1, retain=True)
    end(broker, how)
    with Raw.connected(broker.mqtt_port, version=5) as subscriber:
        subscriber.subscribe(("keep/+", 1))
        got = {m.topic: (m.payload, m.properties, m.retain) for m in (subscriber.message() for _ in range(2))}
        assert set(got) == {"keep/1", "keep/3"}
        assert got["keep/1"][0] == b"kept" and b"text/plain" in got["keep/1"][1] and got["keep/1"][2]
        assert got["keep/3"][0] == b"new"
        subscriber.nothing_more()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_qos_2_identifier_that_was_received_and_not_released(broker_process: BrokerProcess, how: str) -> None:
    broker = broker_process
    with Raw.connected(broker.mqtt_port, "watch", **PERSISTENT) as watcher:
        watcher.subscribe(("t", 1))
    with Raw.connected(broker.mqtt_port, "p", **PERSISTENT) as publisher:
        publisher.publish("t", b"done", qos=2, packet_id=7)
        publisher.send(publish_packet("t", b"pending", qos=2, packet_id=7, version=5))
        publisher.expect(ack_packet(5, 7))
    end(broker, how)
    with Raw.connected(broker.mqtt_port, "p", **PERSISTENT) as publisher:
        assert publisher.session_present
        publisher.send(publish_packet("t", b"pending", qos=2, packet_id=7, dup=True, version=5))
        publisher.expect(ack_packet(5, 7))
        publisher.send(ack_packet(6, 7))
        publisher.expect(ack_packet(7, 7))
        publisher.publish("t", b"reused", qos=2, packet_id=7)
    end(broker, how)
    with Raw.connected(broker.mqtt_port, "p", **PERSISTENT) as publisher:
        publisher.publish("t", b"reused again", qos=2, packet_id=7)
    with Raw.connected(broker.mqtt_port, "watch", **PERSISTENT) as watcher:
        got = [watcher.message().payload for _ in range(4)]
        assert got == [b"done", b"pending", b"reused", b"reused again"]
        watcher.nothing_more()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_qos_2_on_its_way_to_a_client(broker_process: BrokerProcess, how: str) -> None:
    broker = broker_process
    with Raw.connected(broker.mqtt_port, "s", **PERSISTENT) as subscriber:
        subscriber.subscribe(("t", 2))
        with Raw.connected(broker.mqtt_port) as publisher:
            for payload in (b"complete", b"received", b"sent"):
                publisher.publish("t", payload, qos=2)
        assert subscriber.message().payload == b"complete"
        received, sent = subscriber.message(ack=False), subscriber.message(ack=False)
        subscriber.send(ack_packet(5, received.packet_id))
        subscriber.expect(ack_packet(6, received.packet_id))
    end(broker, how)
    with Raw.connected(broker.mqtt_port, "s", **PERSISTENT) as subscriber:
        releases = set()
        while True:
            first, body = subscriber.packet()
            if first != 0x62:
                break
            releases.add(int.from_bytes(body[:2], "big"))
            subscriber.send(ack_packet(7, int.from_bytes(body[:2], "big")))
        assert received.packet_id in releases
        assert first == 0x34 | 8
        again = Message(first, body, 5)
        assert (again.payload, again.packet_id) == (b"sent", sent.packet_id)
        subscriber.send(ack_packet(5, again.packet_id))
        subscriber.expect(ack_packet(6, again.packet_id))
        subscriber.send(ack_packet(7, again.packet_id))
        subscriber.nothing_more()


def test_a_delayed_will_and_a_delayed_publish(broker_process: BrokerProcess) -> None:
    broker = broker_process
    with Raw.connected(broker.mqtt_port, "watch", **PERSISTENT) as watcher:
        watcher.subscribe(("#", 1))
        watcher.disconnect()
    with Raw.connected(
        broker.mqtt_port, "p", will=("will", b"w", 1, False), will_properties={Property.WILL_DELAY: 3}, **PERSISTENT
    ) as client:
        client.publish("$delayed/3/later", b"d", qos=1)
    time.sleep(0.2)  # until the broker has noticed that the client is gone
    with Raw.connected(broker.mqtt_port) as other:
        other.publish("mark", b"durable", qos=1)
    broker.kill()
    broker.start()
    with Raw.connected(broker.mqtt_port, "watch", **PERSISTENT) as watcher:
        got = {watcher.message().topic for _ in range(3)}
        assert got == {"mark", "will", "later"}


@pytest.mark.parametrize("qos", [1, 2])
def test_kill_under_load_loses_nothing_acked(start_broker: StartBroker, qos: int) -> None:
    """Publishers work through kills; a subscriber that comes afterwards finds every acked message, QoS 2 once."""
    broker = start_broker()
    acked: set[bytes] = set()
    stop = threading.Event()
    with Raw.connected(broker.mqtt_port, "reader", **PERSISTENT) as reader:
        reader.subscribe(("load/#", qos))
        reader.disconnect()

    publishers = [threading.Thread(target=_publish, args=(broker, f"p{n}", qos, acked, stop)) for n in range(3)]
    for publisher in publishers:
        publisher.start()
    for _ in range(3):
        time.sleep(1.0)
        broker.kill()
        broker.start()
    time.sleep(0.5)
    stop.set()
    for publisher in publishers:
        publisher.join()
    broker.kill()
    broker.start()
    got = _read_all(broker)
    assert len(acked) > 100
    assert acked <= set(got)
    if qos == 2:
        assert len(got) == len(set(got))


def _publish(broker: BrokerProcess, name: str, qos: int, acked: set[bytes], stop: threading.Event) -> None:
    """A publisher that keeps to the protocol: what is not acknowledged is sent again, with DUP, or released again."""
    pending: dict[int, tuple[bytes, bool]] = {}  # identifier → payload, released
    numbers = itertools.count()

    def send(client: Raw, packet_id: int, payload: bytes, dup: bool) -> None:
        client.send(publish_packet(f"load/{name}", payload, qos=qos, packet_id=packet_id, dup=dup, version=5))

    while not stop.is_set():
        with (
            contextlib.suppress(OSError, AssertionError),
            Raw.connected(broker.mqtt_port, name, **PERSISTENT) as client,
        ):
            for packet_id, (payload, released) in list(pending.items()):
                if released:
                    client.send(ack_packet(6, packet_id))
                else:
                    send(client, packet_id, payload, True)
            while not stop.is_set():
                while len(pending) < 20:
                    packet_id = next(i for i in range(1, 1000) if i not in pending)
                    pending[packet_id] = f"{name}-{next(numbers)}".encode(), False
                    send(client, packet_id, pending[packet_id][0], False)
                _handle(client, pending, acked)
        time.sleep(0.05)


def _handle(client: Raw, pending: dict[int, tuple[bytes, bool]], acked: set[bytes]) -> None:
    first, body = client.packet()
    packet_id = int.from_bytes(body[:2], "big")
    payload, _ = pending.get(packet_id, (b"", False))
    if first == 0x40:
        acked.add(payload)
        pending.pop(packet_id, None)
    elif first == 0x50:
        acked.add(payload)
        pending[packet_id] = payload, True
        client.send(ack_packet(6, packet_id))
    elif first == 0x70:
        pending.pop(packet_id, None)


def _read_all(broker: BrokerProcess) -> list[bytes]:
    """Everything the session is owed, each acknowledged as it comes, until the mark that is published last."""
    got: list[bytes] = []
    with Raw.connected(broker.mqtt_port, "reader", **PERSISTENT) as reader, Raw.connected(broker.mqtt_port) as marker:
        marker.publish("load/end", b"end", qos=1)
        while True:
            first, body = reader.packet()
            if first == 0x62:
                reader.send(ack_packet(7, int.from_bytes(body[:2], "big")))
                continue
            message = Message(first, body, 5)
            reader.send(ack_packet(4 if message.qos == 1 else 5, message.packet_id))
            if message.payload == b"end":
                return got
            got.append(message.payload)


def test_the_will_of_a_client_that_was_connected_when_the_broker_was_killed(broker_process: BrokerProcess) -> None:
    broker = broker_process
    with Raw.connected(broker.mqtt_port, "watch", **PERSISTENT) as watcher:
        watcher.subscribe(("will/#", 1))
        watcher.disconnect()
    will, gone = ("will/kept", b"lost with the broker", 1, False), ("will/gone", b"said goodbye", 1, False)
    with Raw.connected(broker.mqtt_port, "goodbye", will=gone, **PERSISTENT) as client:
        client.disconnect()
    plain = ("will/plain", b"no session", 1, False)
    with (
        Raw.connected(broker.mqtt_port, "plain", version=5, will=plain),
        Raw.connected(broker.mqtt_port, "lost", will=will, **PERSISTENT),
    ):
        broker.kill()
    broker.start()
    with Raw.connected(broker.mqtt_port, "watch", **PERSISTENT) as watcher:
        message = watcher.message()
        assert (message.topic, message.payload, message.qos) == ("will/kept", b"lost with the broker", 1)
        watcher.nothing_more()


def test_its_delay_counts_from_the_restart_and_its_session_going_on_cancels_it(broker_process: BrokerProcess) -> None:
    broker = broker_process
    with Raw.connected(broker.mqtt_port, "watch", **PERSISTENT) as watcher:
        watcher.subscribe(("will/#", 1))
        watcher.disconnect()
    with contextlib.ExitStack() as stack:
        for name, seconds in (("soon", 1), ("back", 2)):
            client = Raw.connected(
                broker.mqtt_port,
                name,
                will=(f"will/{name}", name.encode(), 1, False),
                will_properties={Property.WILL_DELAY: seconds},
                **PERSISTENT,
            )
            stack.enter_context(client)
        broker.kill()
    broker.start()
    with Raw.connected(broker.mqtt_port, "back", **PERSISTENT) as back:
        assert back.session_present
        with Raw.connected(broker.mqtt_port, "watch", **PERSISTENT) as watcher:
            assert watcher.message().payload == b"soon"
        back.disconnect()
    with Raw.connected(broker.mqtt_port, "watch", **PERSISTENT) as watcher:
        watcher.nothing_more()

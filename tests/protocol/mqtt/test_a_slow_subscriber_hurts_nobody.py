"""A client that does not read costs the broker at most its output buffer; what must not be lost waits in the log."""

import socket
import time
from collections import deque
from contextlib import ExitStack

from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw, connect_packet, publish_packet, subscribe_packet, unique

PAYLOAD = b"x" * 1000
COUNT = 20_000


def deaf(port: int, topic: str, qos: int, client_id: str) -> Raw:
    """A subscriber that takes little into its socket and reads nothing for now."""
    client = Raw.__new__(Raw)
    client.version, client._buffer, client._early = 4, b"", deque()
    client.socket = socket.socket()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    client.socket.settimeout(20)
    client.socket.connect(("127.0.0.1", port))
    client.send(connect_packet(client_id, clean=qos == 0))
    client.expect(b"\x20\x02\x00\x00")
    client.send(subscribe_packet((topic, qos)))
    client.expect(b"\x90\x03\x00\x01" + bytes((qos,)))
    return client


def flood(port: int, topic: str, qos: int, count: int = COUNT) -> None:
    with Raw.connected(port) as publisher:
        for start in range(0, count, 1000):
            numbers = range(start, start + 1000)
            packets = (publish_packet(topic, b"%6d" % n + PAYLOAD, qos=qos, packet_id=n % 60_000 + 1) for n in numbers)
            publisher.send(b"".join(packets))
            if qos:
                publisher.acks(1000)
        publisher.ping()


def test_qos_0_beyond_its_buffer_is_dropped_and_counted() -> None:
    with Broker("mqtt.sys_interval_ms=200ms") as broker:
        port = broker.mqtt_port
        with deaf(port, "slow", 0, "deaf"), Raw.connected(port) as quick:
            quick.subscribe(("other", 0))
            flood(port, "slow", 0)
            quick.publish("other", b"quick")
            assert quick.message().payload == b"quick"
            quick.subscribe(("$SYS/broker/publish/messages/dropped", 0))
            deadline = time.monotonic() + 10
            while int(quick.message().payload) == 0:
                assert time.monotonic() < deadline
            app = broker.app
            assert app is not None
            assert sum(c.transport.get_write_buffer_size() for c in app.servers["mqtt"].connections) < 8 << 20


def test_qos_1_waits_in_the_log_and_arrives_whole_and_in_order() -> None:
    topic = unique("slow")
    with Broker() as broker, deaf(broker.mqtt_port, topic, 1, "deaf") as slow:
        flood(broker.mqtt_port, topic, 1)
        numbers = [int(slow.message().payload[:6]) for _ in range(COUNT)]
        assert numbers == list(range(COUNT))
        slow.nothing_more()


def test_many_slow_subscribers_together_cost_what_all_may_leave_unread_and_lose_nothing() -> None:
    topic, subscribers, count, total = unique("slow"), 10, 8_000, 2 << 20
    with Broker(f"limits.output_bytes_total_max={total}") as broker, ExitStack() as stack:
        app = broker.app
        assert app is not None
        slow = [stack.enter_context(deaf(broker.mqtt_port, topic, 1, f"deaf-{n}")) for n in range(subscribers)]
        flood(broker.mqtt_port, topic, 1, count)
        waiting = [c.transport.get_write_buffer_size() for c in app.servers["mqtt"].connections]
        assert total // 2 < sum(waiting) < total + subscribers * (128 << 10), "each alone may leave a megabyte"
        for client in slow:
            assert [int(client.message().payload[:6]) for _ in range(count)] == list(range(count))
        deadline = time.monotonic() + 10
        while app.unsent.bytes or app.unsent.tight:
            assert time.monotonic() < deadline
            time.sleep(0.05)

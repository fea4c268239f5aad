"""Messages of several megabytes: written by a thread beside their log, and sent from where they lie. Nobody may tell."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pika
import pytest

from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.storage.segment.large_reads import KEPT_BYTES_MAX
from mainstem.testing import BrokerProcess
from tests.crossing.commands import http
from tests.protocol.mqtt.raw import Raw, publish_packet
from tests.protocol.nats.raw import Raw as Nats

LARGE = os.urandom(9 << 20)
WAIT_S = 30
KAFKA = {"message.max.bytes": 20_000_000, "fetch.message.max.bytes": 20_000_000, "group.id": "g"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as one:
        yield one


def digest(value: bytes | None) -> str:
    return hashlib.sha256(value or b"").hexdigest()


def channel_of(broker: BrokerProcess) -> pika.adapters.blocking_connection.BlockingChannel:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)).channel()


def payload_of(listener: Nats) -> bytes:
    words = listener.line().split()
    whole = listener.exactly(int(words[-1]) + 2)[:-2]
    return whole[int(words[-2]) :] if words[0] == b"HMSG" else whole


def test_a_publisher_s_messages_keep_their_order_and_every_protocol_gets_the_same_bytes(broker: BrokerProcess) -> None:
    reading = channel_of(broker)
    reading.queue_declare("q", durable=True)
    reading.queue_bind("q", "amq.topic", "big.a")
    with (
        Raw.connected(broker.mqtt_port, version=5) as publisher,
        Raw.connected(broker.mqtt_port, version=5) as subscriber,
        Raw.connected(broker.mqtt_port) as old,
        Nats(broker.nats_port) as by_nats,
    ):
        by_nats.send(b"SUB big.* 1\r\n")
        assert by_nats.synced() == []
        subscriber.subscribe(("big/#", 1))
        old.subscribe(("big/#", 1))
        told = {Property.CONTENT_TYPE: b"x/y", Property.USER_PROPERTY: [(b"k", b"v")]}
        packets = [publish_packet("big/a", b"before", qos=1, packet_id=1, version=5)]
        packets += [publish_packet("big/a", LARGE, qos=1, packet_id=2, version=5, properties=told)]
        packets += [publish_packet("big/a", b"after", qos=1, packet_id=3, version=5)]
        publisher.send(b"".join(packets))
        expected = [digest(b"before"), digest(LARGE), digest(b"after")]
        messages = [subscriber.message() for _ in expected]
        assert [digest(one.payload) for one in messages] == expected
        assert messages[1].properties == b"\x03\0\x03x/y\x26\0\x01k\0\x01v"
        assert [digest(old.message().payload) for _ in expected] == expected
        for one in (subscriber, old):
            one.nothing_more()
        assert [digest(payload_of(by_nats)) for _ in expected] == expected
        assert by_nats.synced() == []
    bodies = (body for _, _, body in reading.consume("q", auto_ack=True, inactivity_timeout=WAIT_S))
    assert [digest(next(bodies)) for _ in expected] == expected
    consumer = confluent_kafka.Consumer({**KAFKA, "bootstrap.servers": f"127.0.0.1:{broker.kafka_port}"})
    consumer.assign([confluent_kafka.TopicPartition("big.a", 0, 0)])
    records = [consumer.poll(WAIT_S) for _ in expected]
    assert [digest(one.value()) for one in records if one is not None and not one.error()] == expected
    consumer.close()


def test_a_confirmed_large_message_outlives_a_kill_and_small_ones_stand_around_it(broker: BrokerProcess) -> None:
    writing = channel_of(broker)
    writing.queue_declare("q", durable=True)
    writing.confirm_delivery()
    persistent = pika.BasicProperties(delivery_mode=2, headers={"h": 1})
    sent = [b"one", LARGE, b"two", LARGE[::-1], b"three"]
    for body in sent:
        writing.basic_publish("", "q", body, persistent)
    for _ in range(2):  # and a second start reads what the first one left
        broker.kill()
        broker.start()
    reading = channel_of(broker)
    found = [
        (digest(body), properties.headers)
        for _, (_, properties, body) in zip(sent, reading.consume("q", inactivity_timeout=WAIT_S), strict=False)
    ]
    assert found == [(digest(body), {"h": 1}) for body in sent]
    facts = http(broker, "GET", "/v1/queues/q")
    assert (facts["ready"], facts["unacked"]) == (0, len(sent)), "each once"


def test_what_was_being_written_when_the_broker_was_killed_leaves_nothing_behind(broker: BrokerProcess) -> None:
    with Raw.connected(broker.mqtt_port, "p") as publisher:
        publisher.publish("kept", b"kept", qos=1)
        publisher.send(publish_packet("big", LARGE, qos=1, packet_id=7))  # no answer is waited for
    broker.kill()
    logs = broker.data / "logs"
    (next(logs.rglob("*.log")).parent / "prepared-99.log.new").write_bytes(b"cut off")
    broker.start()
    assert not list(logs.rglob("prepared-*"))
    with Raw.connected(broker.mqtt_port, version=5) as subscriber:
        subscriber.subscribe(("$stream/@earliest/kept", 0))
        assert subscriber.message().payload == b"kept"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_subscriber_that_was_away_is_sent_what_it_missed(broker: BrokerProcess, qos: int) -> None:
    lasting = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 1000}}
    with Raw.connected(broker.mqtt_port, "s", **lasting) as subscriber:
        subscriber.subscribe(("big", 2))
        subscriber.disconnect()
    with Raw.connected(broker.mqtt_port) as publisher:
        publisher.publish("big", LARGE, qos=qos)
        publisher.publish("big", b"after", qos=1)
    broker.restart()
    with Raw.connected(broker.mqtt_port, "s", **lasting) as subscriber:
        if qos:
            assert digest(subscriber.message().payload) == digest(LARGE)
        assert subscriber.message().payload == b"after"
        subscriber.nothing_more()


def test_a_publisher_that_leaves_at_once_hurts_nobody(broker: BrokerProcess) -> None:
    with Raw.connected(broker.mqtt_port) as subscriber:
        subscriber.subscribe(("big", 0))
        with Raw.connected(broker.mqtt_port) as publisher:
            publisher.send(publish_packet("big", LARGE, qos=1, packet_id=1))
        assert digest(subscriber.message().payload) == digest(LARGE)
        with Raw.connected(broker.mqtt_port) as publisher:
            publisher.publish("big", b"still here", qos=1)
        assert subscriber.message().payload == b"still here"
        subscriber.nothing_more()


def test_a_topic_that_is_deleted_while_a_large_message_is_written_hurts_nobody(broker: BrokerProcess) -> None:
    with Raw.connected(broker.mqtt_port) as publisher, Raw.connected(broker.mqtt_port) as subscriber:
        subscriber.subscribe(("other", 0))
        for number in range(5):
            publisher.publish("big", b"makes it", qos=1)
            publisher.send(publish_packet("big", LARGE, qos=1, packet_id=7))
            http(broker, "DELETE", "/v1/topics/big")
            assert publisher.packet()[0] == 0x40, "acked, before it or behind"
            publisher.publish("other", b"%d" % number, qos=1)
            assert subscriber.message().payload == b"%d" % number
        publisher.publish("big", b"again", qos=1)
    broker.restart()
    with Raw.connected(broker.mqtt_port, version=5) as reader:
        reader.subscribe(("$stream/@earliest/big", 0))
        payload = reader.message().payload
        if payload != b"again":  # the last large one came behind its topic's end, and made it anew
            assert digest(payload) == digest(LARGE)
            payload = reader.message().payload
        assert payload == b"again"
        reader.nothing_more()


def test_a_kafka_consumer_s_large_messages_leave_the_memory_with_their_answers(broker: BrokerProcess) -> None:
    """Not with the next run of the collector of cycles: it comes late where few objects are made, however large."""
    address = {"bootstrap.servers": f"127.0.0.1:{broker.kafka_port}"}
    producer = confluent_kafka.Producer({**address, "message.max.bytes": KAFKA["message.max.bytes"]})
    consumer = confluent_kafka.Consumer({**KAFKA, **address, "auto.offset.reset": "earliest"})
    consumer.subscribe(["big.memory"])
    count, sizes = 40, []
    for _ in range(count):
        producer.produce("big.memory", LARGE)
        producer.flush(WAIT_S)
        message = next(found for found in iter(lambda: consumer.poll(WAIT_S), None) if found.error() is None)
        assert len(message.value()) == len(LARGE)
        sizes.append(memory_bytes(broker))
    consumer.close()
    assert max(sizes) < sizes[0] + KEPT_BYTES_MAX + 8 * len(LARGE), [size >> 20 for size in sizes]


def memory_bytes(broker: BrokerProcess) -> int:
    pages = int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def faults(broker: BrokerProcess) -> int:
    """Pages that it touched for the first time."""
    return int(Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()[7])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not count page faults there")
def test_the_next_large_message_is_put_where_the_last_one_was(broker: BrokerProcess) -> None:
    """Tens of megabytes that are new to the process cost more than what is done with them."""
    pages = len(LARGE) // os.sysconf("SC_PAGE_SIZE")
    with Raw.connected(broker.mqtt_port) as publisher, Raw.connected(broker.mqtt_port) as subscriber:
        subscriber.subscribe(("big/#", 0))
        least = 10 * pages
        for _ in range(8):  # the first ones need memory of their own, and a slow machine may have given it back
            before = faults(broker)
            publisher.publish("big/a", LARGE, qos=1)
            assert digest(subscriber.message().payload) == digest(LARGE)
            least = min(least, faults(broker) - before)
        assert least < pages // 2

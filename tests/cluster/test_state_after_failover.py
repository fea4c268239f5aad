"""What clients left with the owner is there at the next one: sessions, retained and delayed messages, groups, queues,
consumers, producers, a transaction that was open, views."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import nats
import paho.mqtt.client as mqtt
import pika
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from nats.js.api import ConsumerConfig
from paho.mqtt.enums import CallbackAPIVersion

from tests.cluster.kit import Cluster
from tests.cluster.reading import read_topic
from tests.contract.postgres_server import PostgresServer

TOPIC, GROUP = "numbers", "readers"
DELAY_MS = 4_000
VIEW = "evens"

pytestmark = pytest.mark.timeout(300)  # of a busy machine


def mqtt_client(name: str, port: int, *, clean: bool) -> tuple[mqtt.Client, list[tuple[str, bytes]]]:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=clean)
    got: list[tuple[str, bytes]] = []
    client.on_message = lambda _client, _data, message: got.append((message.topic, message.payload))
    client.connect("127.0.0.1", port)
    client.loop_start()
    return client, got


def leave_with_mqtt(cluster: Cluster, port: int) -> None:
    session, _ = mqtt_client("keeper", port, clean=False)
    cluster.until(session.is_connected)
    subscribed: list[int] = []
    session.on_subscribe = lambda *_: subscribed.append(1)
    session.subscribe("jobs/#", qos=1)
    cluster.until(lambda: subscribed)
    session.disconnect()
    session.loop_stop()
    publisher, _ = mqtt_client("sender", port, clean=True)
    cluster.until(publisher.is_connected)
    for number in range(5):
        publisher.publish("jobs/one", b"%d" % number, qos=1).wait_for_publish(10)
    publisher.publish("state", b"on", qos=1, retain=True).wait_for_publish(10)
    publisher.disconnect()
    publisher.loop_stop()


def find_with_mqtt(cluster: Cluster, port: int) -> None:
    session, got = mqtt_client("keeper", port, clean=False)
    cluster.until(lambda: len(got) == 5)
    assert got == [("jobs/one", b"%d" % number) for number in range(5)]
    session.subscribe("state", qos=1)
    cluster.until(lambda: ("state", b"on") in got)
    session.disconnect()
    session.loop_stop()


def consumer(port: int) -> Consumer:
    servers = {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": GROUP, "log_level": 0}
    made = Consumer({**servers, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    made.subscribe([TOPIC])
    return made


def leave_with_kafka(cluster: Cluster, port: int) -> None:
    servers = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
    producer = Producer({**servers, "transactional.id": "payments"})
    producer.init_transactions(20)
    for kept, numbers in ((True, range(10)), (False, range(100, 110)), (True, range(10, 20))):
        producer.begin_transaction()
        for number in numbers:
            producer.produce(TOPIC, b"%d" % number)
        producer.flush(20)
        if kept:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
    reader = consumer(port)
    read = cluster.until(lambda: reader.consume(7, timeout=1))
    assert [message.value() for message in read] == [b"%d" % number for number in range(len(read))]
    reader.commit(message=read[6 if len(read) == 7 else -1], asynchronous=False)
    cluster.committed = len(read)  # type: ignore[attr-defined]
    reader.close()


def find_with_kafka(cluster: Cluster, port: int) -> None:
    reader, got = consumer(port), list[bytes]()
    first: int = cluster.committed  # type: ignore[attr-defined]

    def all_read() -> bool:
        got.extend(message.value() for message in reader.consume(100, timeout=0.5))
        return len(got) >= 20 - first

    cluster.until(all_read)
    assert got == [b"%d" % number for number in range(first, 20)], "from the committed offset on, nothing aborted"
    reader.close()


def leave_with_amqp(port: int) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.exchange_declare("letters", "topic", durable=True)
    channel.queue_declare("inbox", durable=True)
    channel.queue_bind("inbox", "letters", "in.#")
    channel.confirm_delivery()
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    channel.queue_declare("due", durable=True)
    channel.queue_bind("due", "later", "")
    late = pika.BasicProperties(delivery_mode=2, headers={"x-delay": DELAY_MS})
    channel.basic_publish("later", "", b"late", late)
    for number in range(4):
        channel.basic_publish("letters", "in.a", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    first, _, body = channel.basic_get("inbox")
    assert body == b"0"
    channel.basic_ack(first.delivery_tag)
    channel.basic_get("inbox")  # and left unacknowledged
    channel.queue_declare("inbox", passive=True)  # answered once the ack before it is durable
    connection.close()


def find_with_amqp(port: int) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel, got = connection.channel(), []
    for method, _, body in channel.consume("inbox", inactivity_timeout=2):
        if method is None:
            break
        got.append(body)
        channel.basic_ack(method.delivery_tag)
    assert got == [b"1", b"2", b"3"]
    channel.cancel()
    assert next(channel.consume("due", auto_ack=True, inactivity_timeout=DELAY_MS / 1000 + 20))[2] == b"late"
    channel.cancel()
    channel.basic_publish("letters", "in.b", b"4")
    assert channel.basic_get("inbox", auto_ack=True)[2] == b"4"
    connection.close()


class Writers:
    """Producers that live through the failover: one is idempotent, one has a transaction open."""

    def __init__(self, port: int) -> None:
        servers = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
        self._idempotent = Producer({**servers, "enable.idempotence": True, "linger.ms": 0})
        self._open = Producer({**servers, "transactional.id": "open"})
        self._open.init_transactions(20)

    def write(self, numbers: range) -> None:
        for number in numbers:
            self._idempotent.produce("written", b"%d" % number, key=b"even" if number % 2 == 0 else b"odd")

    def leave(self) -> None:
        self.write(range(20))
        assert self._idempotent.flush(30) == 0
        self._open.begin_transaction()
        self._open.produce("kept", b"of the past owner")
        assert self._open.flush(30) == 0

    def find(self, cluster: Cluster, port: int) -> None:
        self.write(range(40, 60))
        assert self._idempotent.flush(60) == 0
        everything = [value for _, value in read_topic(port, "written")]
        assert everything == [b"%d" % number for number in range(60)], "each once, in order"
        assert read_view(cluster, port, 30) == everything[::2]
        self._open.produce("kept", b"of the next owner")
        self._open.commit_transaction(60)
        assert [value for _, value in read_topic(port, "kept")] == [b"of the past owner", b"of the next owner"]


def read_view(cluster: Cluster, port: int, count: int) -> list[bytes]:
    """A view has a partition for each log that may hold what it shows."""
    reader = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "viewers", "log_level": 0})
    reader.assign(
        [TopicPartition(VIEW, one, 0) for one in reader.list_topics(VIEW, timeout=20).topics[VIEW].partitions]
    )
    got: list[bytes] = []

    def all_read() -> bool:
        got.extend(message.value() for message in reader.consume(100, timeout=0.5))
        return len(got) >= count

    cluster.until(all_read)
    reader.close()
    return got


async def leave_with_nats(port: int) -> None:
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    js = client.jetstream(timeout=10)
    await js.add_stream(name="ORDERS", subjects=["orders.*"])
    for number in range(6):
        await js.publish("orders.new", b"%d" % number)
    pull = await js.pull_subscribe("orders.*", "worker", config=ConsumerConfig(ack_wait=600))
    for message in await pull.fetch(2, timeout=10):
        await message.ack_sync(timeout=10)
    await client.close()


async def find_with_nats(port: int) -> None:
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    js = client.jetstream(timeout=10)
    pull = await js.pull_subscribe("orders.*", "worker")
    got = [message.data for message in await pull.fetch(4, timeout=10)]
    assert got == [b"2", b"3", b"4", b"5"]
    await client.close()


@pytest.mark.slow
def test_sessions_groups_queues_and_consumers_go_on_at_the_next_owner(tmp_path: Path, postgres: PostgresServer) -> None:
    with Cluster(tmp_path, postgres, "a", "b") as cluster:
        ports = cluster["b"].ports  # which relays
        leave_with_mqtt(cluster, ports["mqtt"])
        leave_with_kafka(cluster, ports["kafka"])
        leave_with_amqp(ports["amqp"])
        asyncio.run(leave_with_nats(ports["nats"]))
        writers = Writers(ports["kafka"])
        writers.leave()
        cluster.run("view", "create", VIEW, "written", "--where", "key = 'even'", by="b")
        writers.write(range(20, 40))  # on its way, or sent and not answered, when the owner ends
        cluster["a"].kill()
        assert cluster.wait_owner(other_than="a") == "b"
        find_with_mqtt(cluster, ports["mqtt"])
        find_with_kafka(cluster, ports["kafka"])
        find_with_amqp(ports["amqp"])
        asyncio.run(find_with_nats(ports["nats"]))
        writers.find(cluster, ports["kafka"])
        with urllib.request.urlopen(f"http://127.0.0.1:{ports['http']}/metrics", timeout=10) as answer:
            assert b"\nmainstem_cluster_epoch 2\n" in answer.read()

"""A listener that is switched off changes nothing that is stored or visible: the broker owns its state, not its protocols.

One directory holds state of every protocol. It is opened again with one listener off at a time, and all of it must be there.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import nats
import pika
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from mainstem.log.retention import NO_STAMP
from mainstem.testing import Broker
from tests.crossing.commands import eventually, http
from tests.protocol.mqtt.raw import Raw

COMMITTED = ["first", "second"]
COMMITTED_OFFSET = 5  # three records, each with a marker behind it
DELAY_MS = 500
STREAMED = [b"acked", b"next", b"last"]
LISTENERS = ("mqtt", "ws", "kafka", "amqp", "nats")
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with state of all protocols, closed."""
    data = tmp_path_factory.mktemp("all") / "data"
    with Broker(data=data, engine="segment") as broker:
        _transactions(broker)
        _sessions(broker)
        _queues(broker)
        asyncio.run(_streams(broker))
        http(broker, "POST", "/v1/views", {"name": "v", "filter": "orders"})
    return data


def _transactions(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t", "log_level": 0})
    producer.init_transactions(DEADLINE_S)
    for value, commit in (("first", True), ("aborted", False), ("second", True)):
        producer.begin_transaction()
        producer.produce("orders", value.encode())
        producer.flush(DEADLINE_S)
        (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_S)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    assert [_value(consumer) for _ in COMMITTED] == COMMITTED
    consumer.commit(offsets=[TopicPartition("orders", 0, COMMITTED_OFFSET)], asynchronous=False)
    consumer.close()


def _value(consumer: Consumer) -> str:
    ends = time.monotonic() + DEADLINE_S
    while time.monotonic() < ends:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            return str((message.value() or b"").decode())
    raise AssertionError("nothing came")


def _sessions(broker: Broker) -> None:
    with Raw.connected(broker.mqtt_port, "absent", clean=False) as client:
        client.subscribe(("held/#", 1))
        client.disconnect()
    with Raw.connected(broker.mqtt_port) as publisher:
        publisher.publish("held/x", b"owed", qos=1)
        publisher.publish("kept", b"retained", qos=1, retain=True)


def _queues(broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port, heartbeat=0))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("work", durable=True)
    for value in (b"dead", b"ready"):
        channel.basic_publish("", "work", value, pika.BasicProperties(delivery_mode=2))
    channel.basic_reject(channel.basic_get("work")[0].delivery_tag, requeue=False)
    delayed = pika.BasicProperties(delivery_mode=2, headers={"x-delay": DELAY_MS})
    channel.queue_declare("later", durable=True)
    channel.queue_bind("later", "amq.topic", "later.topic")
    channel.basic_publish("amq.topic", "later.topic", b"delayed", delayed)
    connection.close()


async def _streams(broker: Broker) -> None:
    """Three messages in a stream, the first of them acked by its consumer."""
    client = await nats.connect(broker.nats_url)
    await client.jetstream().add_stream(name="s", subjects=["streamed"])
    for value in STREAMED:
        await client.jetstream().publish("streamed", value)
    worker = await client.jetstream().pull_subscribe("streamed", "worker", stream="s")
    (message,) = await worker.fetch(1, timeout=DEADLINE_S)
    assert message.data == STREAMED[0]
    await message.ack_sync()
    await client.close()


async def _next_of_the_stream(broker: Broker, count: int) -> list[bytes]:
    client = await nats.connect(broker.nats_url)
    worker = await client.jetstream().pull_subscribe_bind("worker", "s")
    found = [message.data for message in await worker.fetch(count, timeout=DEADLINE_S)]
    assert (await worker.consumer_info()).num_pending == 0
    await client.close()
    return found


@pytest.fixture(params=["kafka", "mqtt", "amqp", "nats", "all"])
def without(request: pytest.FixtureRequest, written: Path, tmp_path: Path) -> Iterator[Broker]:
    """The directory opened with a listener off (MQTT has two)."""
    off = {"mqtt": ("mqtt", "ws"), "all": LISTENERS}.get(request.param, (request.param,))
    shutil.copytree(written, tmp_path / "data")
    settings = [f"listeners.{name}_port=off" for name in off]
    with Broker(*settings, data=tmp_path / "data", engine="segment") as broker:
        assert set(broker.ports) == {*LISTENERS, "http"} - set(off)
        yield broker


def test_aborted_records_stay_hidden_and_committed_ones_visible(without: Broker) -> None:
    for subject in ("topic=orders", "view=v", "filter=%23"):
        rows = http(without, "GET", f"/v1/messages?{subject}&from=earliest")["items"]
        assert [row["value"] for row in rows if row["topic"] == "orders"] == COMMITTED, subject
    select = {"kind": "topics", "topics": ["orders"]}
    found = http(without, "POST", "/v1/scan/lanes", {"select": select})["lanes"]
    ranges = [[one["topic"], one["partition"], one["start"], one["end"]] for one in found]
    plan = http(without, "POST", "/v1/scan/plan", {"select": select, "ranges": ranges, "files": False})
    aborted = [one for found in plan["aborted"].values() for one in found]
    assert len(aborted) == 1, "Spark is told which transaction to leave out"


def test_mqtt_and_amqp_readers_see_no_aborted_record(without: Broker) -> None:
    if not {"mqtt", "amqp"} & set(without.ports):
        pytest.skip("neither of them can be asked")
    if "mqtt" in without.ports:
        with Raw.connected(without.mqtt_port) as client:
            client.subscribe(("$stream/@earliest/orders", 1))
            assert [client.message().payload.decode() for _ in COMMITTED] == COMMITTED
    if "amqp" in without.ports:
        connection = pika.BlockingConnection(pika.ConnectionParameters(without.host, without.amqp_port, heartbeat=0))
        channel = connection.channel()
        channel.queue_declare("all", durable=True, arguments={"x-view": "v", "x-from": "earliest"})
        got = [channel.basic_get("all", auto_ack=True)[2] for _ in (*COMMITTED, None)]
        assert got == [*(value.encode() for value in COMMITTED), None]
        connection.close()


def test_groups_sessions_queues_and_dead_letters_are_listed(without: Broker) -> None:
    group = http(without, "GET", "/v1/groups/g")
    assert [row["offset"] for row in group["offsets"]] == [COMMITTED_OFFSET]
    cursors = {row["name"]: row for row in http(without, "GET", "/v1/cursors")["items"]}
    assert {"g", "absent", "work", "later", "s/worker"} <= set(cursors)
    worker = http(without, "GET", "/v1/queues/s/worker")
    assert (worker["ready"], worker["unacked"]) == (len(STREAMED) - 1, 0)
    rows = http(without, "GET", "/v1/messages?topic=streamed&from=earliest")["items"]
    assert [row["value"].encode() for row in rows] == STREAMED
    queue = http(without, "GET", "/v1/queues/work")
    assert (queue["ready"], queue["dead"]) == (1, 1)
    assert [row["value"] for row in http(without, "GET", "/v1/queues/work/dead")["items"]] == ["dead"]


def test_a_delayed_message_arrives_when_it_is_due(without: Broker) -> None:
    eventually(lambda: http(without, "GET", "/v1/queues/later")["ready"] == 1, "the delayed message is in its queue")
    rows = http(without, "GET", "/v1/messages?topic=later/topic&from=earliest")["items"]
    assert [row["value"] for row in rows] == ["delayed"], "once"


def test_sessions_and_retained_messages_hold_their_records(without: Broker) -> None:
    assert without.app is not None
    broker = without.app.broker
    holders, stem = broker.maintenance.holders, broker.journal.stem
    (session,) = broker.session_keeper.sessions
    assert holders["sessions"](stem).from_stamp == session.position != NO_STAMP
    pointer = broker.session_keeper.retained(broker.namespace("/")).current(b"kept")
    assert pointer is not None
    assert list(holders["retained"](stem).offsets) == [pointer.offset]


def test_a_transaction_left_open_times_out_with_kafka_off(tmp_path: Path) -> None:
    with Broker(data=tmp_path / "data", engine="segment") as broker:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "left", "log_level": 0}
        producer = Producer({**settings, "transaction.timeout.ms": 1000})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce("left", b"undecided")
        producer.flush(DEADLINE_S)
    with Broker("listeners.kafka_port=off", data=tmp_path / "data", engine="segment") as broker:
        http(broker, "POST", "/v1/messages", {"topic": "left", "value": "after"})

        def shown() -> list[str]:
            return [row["value"] for row in http(broker, "GET", "/v1/messages?topic=left&from=earliest")["items"]]

        eventually(lambda: shown() == ["after"], "the open transaction is aborted")
        assert broker.app is not None
        assert not list(broker.app.broker.coordinator.producers.open_transactions())


def test_nothing_of_it_is_lost_when_the_listeners_come_back(written: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(written, data)
    off = [f"listeners.{name}_port=off" for name in LISTENERS]
    for settings in (off, off, []):
        with Broker(*settings, data=data, engine="segment") as broker:
            if not settings:
                _each_protocol_has_its_own(broker)


def _each_protocol_has_its_own(broker: Broker) -> None:
    with Raw.connected(broker.mqtt_port, "absent", clean=False) as client:
        assert client.message().payload == b"owed"
        client.nothing_more()
    with Raw.connected(broker.mqtt_port) as client:
        client.subscribe(("kept", 0))
        message = client.message()
        assert (message.payload, message.retain) == (b"retained", True)
        client.nothing_more()
    assert [row["offset"] for row in http(broker, "GET", "/v1/groups/g")["offsets"]] == [COMMITTED_OFFSET]
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("orders", b"behind")
    assert producer.flush(DEADLINE_S) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    consumer.subscribe(["orders"])
    assert _value(consumer) == "behind", "the group goes on where it was"
    consumer.assign([TopicPartition("orders", 0, 0)])
    assert [_value(consumer) for _ in range(3)] == [*COMMITTED, "behind"]
    consumer.close()
    eventually(lambda: http(broker, "GET", "/v1/queues/later")["ready"] == 1, "the delayed message is in its queue")
    with pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port)) as connection:
        channel = connection.channel()
        for queue, value in (("work", b"ready"), ("later", b"delayed")):
            assert [channel.basic_get(queue, auto_ack=True)[2] for _ in range(2)] == [value, None]
    assert [row["value"] for row in http(broker, "GET", "/v1/queues/work/dead")["items"]] == ["dead"]
    assert asyncio.run(_next_of_the_stream(broker, len(STREAMED) - 1)) == STREAMED[1:]

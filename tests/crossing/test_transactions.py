"""What a Kafka transaction committed waits in queues like everything else; what it aborted is in none."""

from __future__ import annotations

import uuid
from typing import Any

import pika
import pytest
from confluent_kafka import Producer

from mainstem.testing import Broker
from tests.crossing.commands import eventually, http
from tests.crossing.message import Message, Speaker
from tests.crossing.share_values import ValueMember


def transactions(broker: Broker, topic: str, compression: str) -> None:
    """Two values are committed, two aborted, two committed."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic, "log_level": 0}
    producer = Producer({**settings, "compression.type": compression})
    producer.init_transactions(20)
    for name, commit in (("first", True), ("aborted", False), ("second", True)):
        producer.begin_transaction()
        for n in range(2):
            producer.produce(topic, f"{name} {n}".encode())
        producer.flush(20)
        if commit:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)


@pytest.fixture
def channel(broker: Broker) -> Any:
    connection = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port, heartbeat=0))
    yield connection.channel()
    connection.close()


COMMITTED = [b"first 0", b"first 1", b"second 0", b"second 1", b"behind"]


@pytest.fixture(params=["none", "zstd"])
def queue(broker: Broker, speakers: dict[str, Speaker], channel: Any, request: pytest.FixtureRequest) -> str:
    """Bound before, with nobody to take from it while the transactions end."""
    name = f"tx{uuid.uuid4().hex[:8]}"
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, "amq.topic", f"{name}.topic")
    transactions(broker, f"{name}.topic", request.param)
    speakers["mqtt"].say(Message(f"{name}/topic", b"behind"))
    eventually(lambda: http(broker, "GET", f"/v1/queues/{name}")["ready"] == len(COMMITTED), "all committed are ready")
    return name


def test_committed_records_wait_for_amqp_consumers(channel: Any, queue: str) -> None:
    assert [channel.basic_get(queue, auto_ack=True)[2] for _ in COMMITTED] == COMMITTED
    assert channel.basic_get(queue)[0] is None


def test_committed_records_come_back_when_they_are_released(broker: Broker, channel: Any, queue: str) -> None:
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in COMMITTED]
    channel.basic_nack(tags[-1], multiple=True, requeue=True)
    again = [channel.basic_get(queue, auto_ack=True) for _ in COMMITTED]
    assert [(method.redelivered, body) for method, _, body in again] == [(True, value) for value in COMMITTED]
    assert channel.basic_get(queue)[0] is None


def test_committed_records_are_kept_as_dead_letters(broker: Broker, channel: Any, queue: str) -> None:
    for _ in COMMITTED:
        channel.basic_reject(channel.basic_get(queue)[0].delivery_tag, requeue=False)
    eventually(lambda: http(broker, "GET", f"/v1/queues/{queue}")["dead"] == len(COMMITTED), "all are dead")
    rows = http(broker, "GET", f"/v1/queues/{queue}/dead")["items"]
    assert [row["value"].encode() for row in rows] == COMMITTED


def test_committed_records_wait_for_mqtt_and_kafka_consumers(
    broker: Broker, speakers: dict[str, Speaker], queue: str
) -> None:
    with ValueMember(broker, queue, queue) as member:
        assert [held.value for held in member.hold(2)] == COMMITTED[:2]
        with speakers["mqtt"].listen(f"$queue/{queue}") as ear:
            assert [ear.hear(f"{queue}/topic").message.value for _ in COMMITTED[2:]] == COMMITTED[2:]
            eventually(lambda: http(broker, "GET", f"/v1/queues/{queue}")["unacked"] == 2, "only Kafka holds some")
            assert (http(broker, "GET", f"/v1/queues/{queue}")["ready"], ear.waiting()) == (0, [])

"""Of a queue every consumer is shown with its protocol and how many messages it holds unacknowledged."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import pytest

from mainstem.testing import Broker
from tests.crossing.commands import eventually, http, mainstem
from tests.crossing.message import Speaker
from tests.crossing.test_one_queue import AmqpWorker, MqttWorker, settled
from tests.crossing.test_one_queue_with_nats import NatsWorker, add_stream, publish
from tests.protocol.kafka.share_member import ACCEPT, Member


@pytest.fixture
def jobs(broker: Broker) -> Iterator[str]:
    name = f"jobs{uuid.uuid4().hex[:8]}"
    asyncio.run(add_stream(broker.nats_url, name))
    mainstem(broker, "queue", "create", name, f"{name}/#", "--lock", "60s")
    yield name
    mainstem(broker, "queue", "rm", name, "--yes")


def held(broker: Broker, queue: str) -> dict[str, int]:
    return {one["protocol"]: one["unacked"] for one in http(broker, "GET", f"/v1/queues/{queue}")["clients"]}


def test_four_protocols_hold_different_counts_of_one_queue(
    broker: Broker, speakers: dict[str, Speaker], jobs: str
) -> None:
    amqp, mqtt = AmqpWorker(broker, jobs, 4), MqttWorker(broker, f"$queue/{jobs}", 3)
    publish(speakers, jobs, 10)
    by_amqp, by_mqtt = amqp.take(4), mqtt.take(3)
    worker = NatsWorker(broker.nats_url, jobs, jobs)
    by_nats = worker.take(2)
    with Member(broker, jobs, jobs) as kafka:
        [(partition, offset, _)] = kafka.take(1)
        settled(broker, jobs, ready=0, unacked=10, consumers=4, unacked_by_others=0)
        assert held(broker, jobs) == {"amqp": 4, "mqtt": 3, "nats": 2, "kafka": 1}
        described = {one["protocol"]: one for one in http(broker, "GET", f"/v1/queues/{jobs}")["clients"]}
        assert described["kafka"]["group"] == jobs
        assert described["amqp"]["connection"].startswith("amqp-")
        assert described["amqp"]["client"].startswith("ctag")  # pika names no connection: the consumer's tag
        table = [line.split() for line in mainstem(broker, "queue", "describe", jobs).splitlines()]
        assert {(line[1], line[-4]) for line in table if len(line) == 7} >= {
            ("nats", "2"),
            ("mqtt", "3"),
            ("amqp", "4"),
        }
        amqp.channel.basic_ack(by_amqp[0][0].delivery_tag)
        mqtt.ack(by_mqtt[0][0])
        worker.run(by_nats[0].ack_sync())
        assert kafka.settle(partition, offset, offset, ACCEPT) == 0
        settled(broker, jobs, unacked=6)
        assert held(broker, jobs) == {"amqp": 3, "mqtt": 2, "nats": 1, "kafka": 0}
    eventually(lambda: "kafka" not in held(broker, jobs), "the member is gone with its session")
    worker.close()
    amqp.close()
    mqtt.close()
    settled(broker, jobs, unacked=1, consumers=1)  # a JetStream consumer keeps what it holds without a connection


def test_one_channel_may_have_consumers_of_two_queues_and_hold_what_it_got(
    broker: Broker, speakers: dict[str, Speaker], jobs: str
) -> None:
    other = f"{jobs}-other"
    mainstem(broker, "queue", "create", other, f"{jobs}/#", "--lock", "60s")
    amqp = AmqpWorker(broker, jobs, 3)
    publish(speakers, jobs, 5)
    amqp.take(3)
    assert amqp.channel.basic_get(other)[0] is not None
    settled(broker, other, unacked=1, unacked_by_others=1, consumers=0)
    settled(broker, jobs, unacked=3, unacked_by_others=0, consumers=1)
    assert held(broker, jobs) == {"amqp": 3}
    amqp.close()
    mainstem(broker, "queue", "rm", other, "--yes")


def test_a_consumer_of_jetstream_is_described_as_a_queue(broker: Broker, jobs: str) -> None:
    worker = NatsWorker(broker.nats_url, jobs, "")
    for n in range(3):
        worker.run(worker.js.publish(f"{jobs}.x", b"%d" % n))
    worker.take(2)
    facts = http(broker, "GET", f"/v1/queues/{jobs}/worker")
    assert (facts["ready"], facts["unacked"], facts["consumers"]) == (1, 2, 1)
    assert [(one["client"], one["protocol"], one["unacked"]) for one in facts["clients"]] == [("worker", "nats", 2)]
    assert "durable_name" in mainstem(broker, "queue", "describe", f"{jobs}/worker")
    row = next(one for one in http(broker, "GET", "/v1/cursors?limit=1000")["items"] if one["name"] == f"{jobs}/worker")
    assert (row["protocol"], row["lag"], row["unacked"]) == ("nats", 1, 2)
    worker.close()

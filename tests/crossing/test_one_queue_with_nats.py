"""A JetStream consumer with metadata `mainstem-queue` is one of a queue's consumers, beside AMQP's, MQTT's and Kafka's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import nats
import nats.errors
import pytest
from nats.js.api import ConsumerConfig
from nats.js.errors import APIError

from mainstem.testing import Broker
from mainstem.testing.process import BrokerProcess
from tests.crossing.commands import http, mainstem
from tests.crossing.message import Message, Speaker
from tests.crossing.share_values import ValueMember
from tests.crossing.test_one_queue import AmqpWorker, MqttWorker, settled
from tests.protocol.kafka.share_member import ACCEPT, RELEASE

WAIT_S = 10


def publish(speakers: dict[str, Speaker], stream: str, count: int) -> list[bytes]:
    values = [b"job %d" % n for n in range(count)]
    for n, value in enumerate(values):
        speakers[("mqtt", "amqp")[n % 2]].say(Message(f"{stream}/{n % 3}", value))
    return values


class NatsWorker:
    """A pull consumer of a stream that joined the queue; nats-py lives in a thread of its own."""

    def __init__(self, url: str, stream: str, queue: str, durable: str = "worker", **config: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client = self.run(nats.connect(url, connect_timeout=WAIT_S, allow_reconnect=False))
        self.js = self._client.jetstream(timeout=WAIT_S)
        asked = ConsumerConfig(metadata={"mainstem-queue": queue}, **config)
        try:
            self.pull = self.run(self.js.pull_subscribe("", durable, stream=stream, config=asked))
        except BaseException:
            self.close()
            raise

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(4 * WAIT_S)

    def take(self, count: int, timeout: float = WAIT_S) -> list[Any]:
        try:
            found: list[Any] = self.run(self.pull.fetch(count, timeout=timeout))
        except nats.errors.TimeoutError:
            return []
        return found

    def info(self) -> Any:
        return self.run(self.pull.consumer_info())

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the broker may be gone
            self.run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)


@pytest.fixture
def jobs(broker: Broker) -> Iterator[str]:
    """A queue over `<name>/#` with three attempts and locks of one second, and a stream of the same subjects."""
    name = f"jobs{uuid.uuid4().hex[:8]}"
    asyncio.run(add_stream(broker.nats_url, name))
    mainstem(broker, "queue", "create", name, f"{name}/#", "--attempts", "3", "--lock", "2s")
    yield name
    mainstem(broker, "queue", "rm", name, "--yes")


async def add_stream(url: str, name: str) -> None:
    client = await nats.connect(url, connect_timeout=WAIT_S)
    await client.jetstream().add_stream(name=name, subjects=[name, f"{name}.>"])
    await client.close()


@pytest.fixture
def worker(broker: Broker, jobs: str) -> Iterator[NatsWorker]:
    made = NatsWorker(broker.nats_url, jobs, jobs)
    yield made
    made.close()


def test_four_protocols_hold_different_messages_of_one_queue(
    broker: Broker, speakers: dict[str, Speaker], jobs: str, worker: NatsWorker
) -> None:
    mainstem(broker, "queue", "alter", jobs, "--lock", "60s")
    amqp, mqtt = AmqpWorker(broker, jobs, 10), MqttWorker(broker, f"$queue/{jobs}", 10)
    said = publish(speakers, jobs, 40)
    by_amqp, by_mqtt = amqp.take(10), mqtt.take(10)
    by_nats = worker.take(10)
    with ValueMember(broker, jobs, jobs) as kafka:
        by_kafka = kafka.hold(40)
        settled(broker, jobs, ready=0, unacked=40)
        assert (len(by_nats), len(by_kafka)) == (10, 10)
        values = [body for _, body in (*by_amqp, *by_mqtt)] + [m.data for m in by_nats] + [h.value for h in by_kafka]
        assert sorted(values) == sorted(said)
        assert [m.subject for m in by_nats] == [f"{jobs}.{said.index(m.data) % 3}" for m in by_nats]
        assert worker.info().num_ack_pending == 10
        for method, _ in by_amqp:
            amqp.channel.basic_ack(method.delivery_tag)
        for packet_id, _ in by_mqtt:
            mqtt.ack(packet_id)
        for message in by_nats:
            worker.run(message.ack_sync())
        for held in by_kafka:
            assert kafka.settle_one(held, ACCEPT) == 0
        settled(broker, jobs, ready=0, unacked=0, dead=0)
    amqp.close()
    mqtt.close()


def test_attempts_are_counted_over_all_protocols_and_end_as_a_dead_letter(
    broker: Broker, speakers: dict[str, Speaker], jobs: str, worker: NatsWorker
) -> None:
    speakers["mqtt"].say(Message(f"{jobs}/0", b"poison"))
    [first] = worker.take(1)
    assert (first.data, first.metadata.num_delivered) == (b"poison", 1)
    worker.run(first.nak())
    with ValueMember(broker, jobs, jobs) as kafka:
        [held] = kafka.hold()
        assert (held.value, held.count) == (b"poison", 2)
        assert kafka.settle_one(held, RELEASE) == 0
    [third] = worker.take(1)
    assert (third.data, third.metadata.num_delivered) == (b"poison", 3)
    settled(broker, jobs, ready=0, unacked=0, dead=1)  # its lock expired, and that was the last attempt
    worker.run(third.ack())  # too late
    [row] = [json.loads(line) for line in mainstem(broker, "queue", "dead", jobs, "--json").splitlines()]
    assert (row["reason"], row["attempts"], row["value"]) == ("delivery_limit", 3, "poison")


def test_term_rejects_progress_keeps_the_lock_and_a_delay_is_waited_for(
    broker: Broker, speakers: dict[str, Speaker], jobs: str, worker: NatsWorker
) -> None:
    said = publish(speakers, jobs, 3)
    ended, kept, later = worker.take(3)
    assert [ended.data, kept.data, later.data] == said
    worker.run(ended.term())
    worker.run(later.nak(delay=1.5))
    deadline = time.monotonic() + 3  # longer than the lock
    while time.monotonic() < deadline:
        worker.run(kept.in_progress())
        time.sleep(0.5)
    settled(broker, jobs, ready=1, unacked=1, dead=1)
    worker.run(kept.ack_sync())
    [again] = worker.take(1)
    assert (again.data, again.metadata.num_delivered) == (later.data, 2)
    worker.run(again.ack_sync())
    settled(broker, jobs, ready=0, unacked=0, dead=1)
    [dead] = http(broker, "GET", f"/v1/queues/{jobs}/dead")["items"]
    assert (dead["reason"], dead["value"].encode()) == ("rejected", ended.data)


def test_the_consumers_configuration_is_the_queues_and_what_does_not_fit_is_refused(broker: Broker, jobs: str) -> None:
    worker = NatsWorker(broker.nats_url, jobs, jobs, ack_wait=77, max_deliver=9)
    config = worker.info().config
    assert (config.ack_wait, config.max_deliver) == (2, 3)
    worker.close()
    asyncio.run(add_stream(broker.nats_url, f"{jobs}other"))
    with pytest.raises(APIError, match="takes in"):
        NatsWorker(broker.nats_url, f"{jobs}other", jobs)
    with pytest.raises(APIError, match="ack policy explicit"):
        NatsWorker(broker.nats_url, jobs, jobs, "other", ack_policy="none")


def test_a_queue_that_is_not_there_is_made_over_the_streams_history(
    broker: Broker, speakers: dict[str, Speaker]
) -> None:
    name = f"made{uuid.uuid4().hex[:8]}"
    asyncio.run(add_stream(broker.nats_url, name))
    said = publish(speakers, name, 6)
    worker = NatsWorker(broker.nats_url, name, f"{name}-queue")
    settled(broker, f"{name}-queue", ready=6)
    amqp = AmqpWorker(broker, f"{name}-queue", 2)
    taken = [body for _, body in amqp.take(2)] + [m.data for m in worker.take(4)]
    assert sorted(taken) == sorted(said)
    amqp.close()
    worker.close()


def test_consumers_are_listed_among_the_queues(broker: Broker, jobs: str) -> None:
    worker = NatsWorker(broker.nats_url, jobs, "")
    worker.run(worker.js.publish(f"{jobs}.x", b"1"))
    rows = {row["name"]: row for row in http(broker, "GET", "/v1/queues")["items"]}
    assert (rows[f"{jobs}/worker"]["kind"], rows[f"{jobs}/worker"]["ready"]) == ("jetstream", 1)
    assert f"{jobs}/worker" in mainstem(broker, "queue", "ls")
    worker.close()


def test_a_joined_consumer_and_what_it_acked_outlive_a_kill(tmp_path: Any) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        asyncio.run(add_stream(broker.nats_url, "s"))
        worker = NatsWorker(broker.nats_url, "s", "q")
        for n in range(4):
            worker.run(worker.js.publish("s.x", b"%d" % n))
        taken = worker.take(3)
        assert [m.data for m in taken] == [b"0", b"1", b"2"]
        worker.run(taken[0].ack_sync())
        broker.kill()
        broker.start()
        worker.close()
        worker = NatsWorker(broker.nats_url, "s", "q")
        left = worker.take(3)
        assert sorted(m.data for m in left) == [b"1", b"2", b"3"]
        settled(broker, "q", ready=0, unacked=3, dead=0)  # type: ignore[arg-type]
        worker.close()

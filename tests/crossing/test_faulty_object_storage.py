"""The store is slow, throttles, cuts answers off, loses them: nothing is lost, nobody at the head of a log waits."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import nats
import nats.js.errors
import pika
import pika.exceptions
import pytest
from confluent_kafka import KafkaError, Producer

from mainstem.storage.tier.registry import Registry
from mainstem.testing.process import BrokerProcess
from tests.crossing.test_object_storage import COUNT, POLICY, VALUES, eventually, local_bytes, publish, read_kafka
from tests.protocol.mqtt.raw import Raw, publish_packet
from tests.s3_faults import FaultProxy, fault_proxy
from tests.s3_server import S3Server, s3_server

TOPIC = "cold"
QUOTA_EXCEEDED = 0x97


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.endpoint) as proxy:
        yield proxy


def make_broker(server: S3Server, proxy: FaultProxy, folder: Path, *settings: str) -> BrokerProcess:
    store = (f"tier.store=s3://bucket/{uuid.uuid4().hex}", f"tier.endpoint={proxy.endpoint}", "tier.timeout_ms=5s")
    policy = (f"policies.{TOPIC}/#.{one}" for one in POLICY)
    return BrokerProcess(folder / "data", *store, *policy, *settings, environment=server.environment)


def metric(broker: BrokerProcess, name: str) -> float:
    for line in httpx.get(f"{broker.http_url}/metrics", timeout=30).text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(f"there is no metric {name}")


def reason(client: Raw, topic: str, payload: bytes) -> int:
    """Of the PUBACK."""
    client.send(publish_packet(topic, payload, qos=1, version=5))
    first, body = client.packet()
    assert first == 0x40
    return body[2] if len(body) > 2 else 0


def check_that_every_protocol_is_refused(broker: BrokerProcess) -> None:
    """Each in its own words."""
    why = "wait for the object store"
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.timeout.ms": 5_000})
    failed = list[KafkaError | None]()
    producer.produce(f"{TOPIC}.a", b"x", on_delivery=lambda error, _: failed.append(error))
    producer.flush(30)
    assert failed[0] is not None
    with pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("amq.topic", f"{TOPIC}.a", b"x", pika.BasicProperties(delivery_mode=2))
    answer = httpx.post(f"{broker.http_url}/v1/messages", json={"topic": f"{TOPIC}/a", "value": "x"}, timeout=30)
    assert answer.status_code == 503
    assert why in answer.text
    assert why in asyncio.run(jetstream_refusal(broker))


async def declare_stream(broker: BrokerProcess) -> None:
    client = await nats.connect(broker.nats_url)
    await client.jetstream().add_stream(name="S", subjects=["js.>"])
    await client.close()


async def jetstream_refusal(broker: BrokerProcess) -> str:
    client = await nats.connect(broker.nats_url)
    with pytest.raises(nats.js.errors.APIError) as refused:
        await client.jetstream().publish("js.a", b"x", timeout=30)
    await client.close()
    return str(refused.value.description)


def test_a_store_that_refuses_loses_answers_and_cuts_them_off_holds_everything_in_the_end(
    server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    with make_broker(server, proxy, tmp_path) as broker:
        proxy.faults["*"] = "503"
        publish(broker, f"{TOPIC}.a")
        eventually(lambda: metric(broker, "mainstem_tier_fault") == 1, "the fault is told")
        assert local_bytes(broker) > 0
        assert read_kafka(broker, f"{TOPIC}.a") == VALUES, "what is local is served"
        proxy.faults["*"] = "lost"
        time.sleep(2)  # whatever happens to be under way meets it
        proxy.faults.clear()
        eventually(lambda: local_bytes(broker) == 0, "uploads go on by themselves")
        proxy.faults["GET"] = "cut"
        assert broker.stop() == 0  # begins with an empty cache again
        proxy.faults.clear()
        broker.start()
        proxy.faults["GET"] = "cut"
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("hot", b"still served")
        assert producer.flush(30) == 0
        proxy.faults.clear()
        assert read_kafka(broker, f"{TOPIC}.a") == VALUES
        proxy.faults["GET"] = "delay:0.3"
        assert read_kafka(broker, f"{TOPIC}.a") == VALUES
    registry = Registry(tmp_path / "data")
    assert registry.totals().keys() <= {"live", "doomed"}
    registry.close()


def test_a_broker_that_was_killed_starts_while_the_store_is_away_and_serves_what_is_local(
    server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    with make_broker(server, proxy, tmp_path) as broker:
        publish(broker, f"{TOPIC}.a")  # by Kafka: what a start must know of its producers lies in the log
        eventually(lambda: local_bytes(broker) == 0, "every sealed segment is in the store only")
        broker.kill()
        proxy.faults["*"] = "503"
        broker.start()
        with Raw.connected(broker.mqtt_port, version=5) as client:
            assert reason(client, "hot", b"served") < 0x80
            assert reason(client, f"{TOPIC}/a", b"the head of a log whose beginning is away") < 0x80
        proxy.faults.clear()
        assert read_kafka(broker, f"{TOPIC}.a", COUNT + 1)[:COUNT] == VALUES


@pytest.mark.slow
def test_uploads_that_fall_behind_refuse_publishers_and_a_stop_does_not_wait_for_them(
    server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    others = ("tier.backlog_bytes_max=64KiB", "topics.tier=s3", "policies.other/#.tier=none")
    with make_broker(server, proxy, tmp_path, *others) as broker:
        asyncio.run(declare_stream(broker))
        proxy.faults["*"] = "503"
        with Raw.connected(broker.mqtt_port, version=5) as client:
            client.socket.settimeout(60)
            refused, deadline, sent = 0, time.monotonic() + 60, 0
            while not refused and time.monotonic() < deadline:
                answer = reason(client, f"{TOPIC}/a", VALUES[sent % COUNT] * 20)
                refused = answer if answer >= 0x80 else 0
                sent += 1
            assert refused == QUOTA_EXCEEDED, "told in MQTT's words"
            check_that_every_protocol_is_refused(broker)
            assert reason(client, "other/topic", b"x") < 0x80, "other topics are not concerned"
            proxy.faults.clear()
            eventually(lambda: reason(client, f"{TOPIC}/a", b"again") < 0x80, "taken again by itself")
            proxy.faults["PUT"] = "delay:60"
            for value in VALUES[:600]:
                assert reason(client, f"{TOPIC}/a", value) < 0x80
        began = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - began < 30
        proxy.faults.clear()
        broker.start()
        eventually(lambda: local_bytes(broker) == 0, "the next start goes on")

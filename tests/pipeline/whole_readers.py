"""Readers of a whole topic by each protocol, a value at a time: what is compared may be larger than the memory."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator

import httpx
import nats
import pika
from confluent_kafka import Consumer
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.testing.process import BrokerProcess
from tests.protocol.mqtt.raw import Raw

QUIET_S = 120.0  # nothing for that long, and it is given up
PAGE = 100
ABSENT = "absent"
Reader = Callable[[BrokerProcess, int], Iterator[bytes]]


def kafka(broker: BrokerProcess, count: int, topic: str = "t.a") -> Iterator[bytes]:
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": uuid.uuid4().hex,
        "auto.offset.reset": "earliest",
        "queued.max.messages.kbytes": 32_768,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    for _ in range(count):
        message = consumer.poll(QUIET_S)
        assert message is not None, "no more comes"
        assert message.error() is None, message.error()
        yield message.value() or b""
    consumer.close()


def view(broker: BrokerProcess, count: int) -> Iterator[bytes]:
    name = f"view{uuid.uuid4().hex}"
    made = httpx.post(f"{broker.http_url}/v1/views", json={"name": name, "filter": "t/#"}, timeout=QUIET_S)
    made.raise_for_status()
    return kafka(broker, count, name)


def mqtt_stream(broker: BrokerProcess, count: int) -> Iterator[bytes]:
    with Raw.connected(broker.mqtt_port, version=5, keep_alive=0) as client:
        client.socket.settimeout(QUIET_S)
        earliest = {Property.USER_PROPERTY: [(b"stream-offset", b"earliest")]}
        client.subscribe(("$stream/t/a", 0), properties=earliest)
        for _ in range(count):
            yield client.message().payload


def declare_session(broker: BrokerProcess) -> None:
    with Raw.connected(broker.mqtt_port, ABSENT, clean=False) as client:
        client.subscribe(("t/a", 1))
        client.disconnect()


def absent_session(broker: BrokerProcess, count: int) -> Iterator[bytes]:
    """What came while it was away."""
    with Raw.connected(broker.mqtt_port, ABSENT, clean=False, keep_alive=0) as client:
        assert client.session_present
        client.socket.settimeout(QUIET_S)
        for _ in range(count):
            yield client.message().payload


def amqp(queue: str, arguments: dict[str, object]) -> Reader:
    def read(broker: BrokerProcess, count: int) -> Iterator[bytes]:
        with pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=PAGE)
            consumed = channel.consume(queue, arguments=arguments, inactivity_timeout=QUIET_S)
            for number, (method, _, body) in enumerate(consumed, 1):
                assert method is not None, "no more comes"
                channel.basic_ack(method.delivery_tag)
                yield body
                if number == count:
                    return

    return read


def nats_pull(broker: BrokerProcess, count: int) -> Iterator[bytes]:
    loop = asyncio.new_event_loop()

    async def connect() -> tuple[Client, JetStreamContext.PullSubscription]:
        client = await nats.connect(broker.nats_url)
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        return client, await client.jetstream().pull_subscribe("t.a", stream="ALL", config=config)

    client, subscription = loop.run_until_complete(connect())
    got = 0
    while got < count:
        wanted = min(PAGE, count - got)
        messages = loop.run_until_complete(subscription.fetch(wanted, timeout=QUIET_S))
        got += len(messages)
        yield from (message.data for message in messages)
    loop.run_until_complete(client.close())
    loop.close()


def http(broker: BrokerProcess, count: int) -> Iterator[bytes]:
    asked, got = {"topic": "t/a", "from": "earliest", "limit": str(PAGE)}, 0
    with httpx.Client(timeout=QUIET_S) as client:
        while got < count:
            answer = client.get(f"{broker.http_url}/v1/messages", params=asked)
            answer.raise_for_status()
            rows = answer.json()["items"]
            assert rows, "no more comes"
            got += len(rows)
            yield from (row["value"].encode() for row in rows)
            asked["from"] = str(rows[-1]["offset"] + 1)


READERS: dict[str, Reader] = {
    "Kafka": kafka,
    "a view": view,
    "MQTT $stream": mqtt_stream,
    "an absent MQTT session": absent_session,
    "an AMQP stream": amqp("t.a", {"x-stream-offset": "first"}),
    "an AMQP queue": amqp("held", {}),
    "NATS": nats_pull,
    "HTTP": http,
}

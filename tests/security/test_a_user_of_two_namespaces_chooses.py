"""One user, two namespaces: each protocol's stock client says which at login, and meets nothing of the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import nats
import nats.errors
import paho.mqtt.client as paho
import pika
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from nats.aio.client import Client
from nats.aio.msg import Msg
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pika.exceptions import AMQPConnectionError

from mainstem.testing import Broker
from tests.crossing.commands import eventually
from tests.users import ROOT

PASSWORD = "pass word"
SPACES = ("shop", "lab")  # where ann is without a choice, and where else she may be
EVERYTHING = ["publish", "consume", "create", "configure", "delete", "describe"]
Say = Callable[[str], None]
Seen = list[str]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as one, httpx.Client(base_url=one.http_url, timeout=30) as http:
        http.post("/v1/users", json={"name": ROOT[0], "password": ROOT[1], "admin": True}).raise_for_status()
        http.auth = httpx.BasicAuth(*ROOT)
        for space in (*SPACES, "closed"):
            http.put(f"/v1/namespaces/{space}").raise_for_status()
        user = {"name": "ann", "password": PASSWORD, "namespace": SPACES[0]}
        http.post("/v1/users", json=user).raise_for_status()
        http.patch("/v1/users/ann", json={"also": [SPACES[1]]}).raise_for_status()
        http.post("/v1/users/ann/rules", json={"actions": EVERYTHING, "filter": "#"}).raise_for_status()
        for space in SPACES:
            http.post("/v1/topics", json={"name": "news/a"}, params={"namespace": space}).raise_for_status()
        yield one


def _paho(broker: Broker, seen: Seen, user: str, properties: Properties | None = None) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.username_pw_set(user, PASSWORD)
    ready = threading.Event()
    client.on_connect = lambda *_: client.subscribe("news/#", 1)
    client.on_subscribe = lambda *_: ready.set()
    client.on_message = lambda _, __, message: seen.append(message.payload.decode())
    client.connect(broker.host, broker.mqtt_port, properties=properties)
    client.loop_start()
    assert ready.wait(30), "the login was refused"
    return client


@contextmanager
def by_mqtt_name(broker: Broker, space: str, seen: Seen) -> Iterator[Say]:
    client = _paho(broker, seen, f"{space}:ann")
    yield lambda text: client.publish("news/a", text, 1).wait_for_publish(30)
    client.disconnect()
    client.loop_stop()


@contextmanager
def by_mqtt_property(broker: Broker, space: str, seen: Seen) -> Iterator[Say]:
    properties = Properties(PacketTypes.CONNECT)
    properties.UserProperty = [("ms-namespace", space)]
    client = _paho(broker, seen, "ann", properties)
    yield lambda text: client.publish("news/a", text, 1).wait_for_publish(30)
    client.disconnect()
    client.loop_stop()


def kafka_login(broker: Broker, space: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": f"ann@{space}",
        "sasl.password": PASSWORD,
    }


@contextmanager
def by_kafka(broker: Broker, space: str, seen: Seen) -> Iterator[Say]:
    login = kafka_login(broker, space)
    consumer = Consumer({**login, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["news.a"])
    producer, over = Producer(login), threading.Event()

    def read() -> None:
        while not over.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                seen.append((message.value() or b"").decode())

    def say(text: str) -> None:
        producer.produce("news.a", text.encode())
        assert producer.flush(30) == 0

    thread = threading.Thread(target=read)
    thread.start()
    yield say
    over.set()
    thread.join()
    consumer.close()


@contextmanager
def by_amqp(broker: Broker, space: str, seen: Seen) -> Iterator[Say]:
    login = pika.PlainCredentials("ann", PASSWORD)
    where = pika.ConnectionParameters(broker.host, broker.amqp_port, space, credentials=login, heartbeat=0)
    over, ready = threading.Event(), threading.Event()

    def read() -> None:  # a connection of its own: pika's belong to one thread
        with pika.BlockingConnection(where) as connection:
            channel = connection.channel()
            name = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_bind(name, "amq.topic", "news.#")
            channel.basic_consume(name, lambda _, __, ___, body: seen.append(body.decode()), auto_ack=True)
            ready.set()
            while not over.is_set():
                connection.process_data_events(0.1)

    thread = threading.Thread(target=read)
    thread.start()
    assert ready.wait(30)
    with pika.BlockingConnection(where) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield lambda text: channel.basic_publish("amq.topic", "news.a", text.encode())
    over.set()
    thread.join()


@contextmanager
def by_nats(broker: Broker, space: str, seen: Seen) -> Iterator[Say]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def hear(message: Msg) -> None:
        seen.append(message.data.decode())

    async def connect() -> Client:
        client = await nats.connect(broker.nats_url, user=f"{space}/ann", password=PASSWORD)
        await client.subscribe("news.>", cb=hear)
        await client.flush()
        return client

    async def publish(text: str) -> None:
        await client.publish("news.a", text.encode())
        await client.flush()

    client = asyncio.run_coroutine_threadsafe(connect(), loop).result(30)
    yield lambda text: asyncio.run_coroutine_threadsafe(publish(text), loop).result(30)
    asyncio.run_coroutine_threadsafe(client.close(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


WAYS = (by_mqtt_name, by_mqtt_property, by_kafka, by_amqp, by_nats)


def test_each_client_reads_what_was_said_in_the_namespace_it_chose_and_nothing_else(broker: Broker) -> None:
    with ExitStack() as stack:
        seen: dict[tuple[str, str], Seen] = {(way.__name__, space): [] for way in WAYS for space in SPACES}
        says = {
            (way.__name__, space): stack.enter_context(way(broker, space, seen[way.__name__, space]))
            for way in WAYS
            for space in SPACES
        }
        for (way, space), say in says.items():
            say(f"{way} in {space}")
        expected = {space: {f"{way.__name__} in {space}" for way in WAYS} for space in SPACES}
        for (way, space), read in seen.items():
            eventually(lambda read=read, space=space: expected[space] <= set(read), f"{way} reads all of {space}")
        for space in SPACES:
            says["by_nats", space](f"the end of {space}")
        for (way, space), read in seen.items():
            eventually(lambda read=read, space=space: f"the end of {space}" in read, f"{way} reads the end of {space}")
            assert sorted(read) == sorted({*expected[space], f"the end of {space}"}), (way, space)


def test_a_namespace_that_is_not_hers_is_refused_by_all(broker: Broker) -> None:
    answers: list[bool] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.username_pw_set("closed:ann", PASSWORD)
    client.on_connect = lambda _, __, ___, reason, ____: answers.append(reason.is_failure)
    client.connect(broker.host, broker.mqtt_port)
    client.loop_start()
    eventually(lambda: bool(answers), "the broker answers CONNECT")
    client.loop_stop()
    assert answers[0]
    login = pika.PlainCredentials("ann", PASSWORD)
    where = pika.ConnectionParameters(broker.host, broker.amqp_port, "closed", credentials=login)
    with pytest.raises(AMQPConnectionError):
        pika.BlockingConnection(where)
    with pytest.raises(KafkaException):
        Producer(kafka_login(broker, "closed")).list_topics("news.a", 5)
    with pytest.raises(nats.errors.Error):
        asyncio.run(nats.connect(broker.nats_url, user="closed/ann", password=PASSWORD, allow_reconnect=False))

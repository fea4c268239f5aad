"""Publishers of every protocol that go on through failovers: each notes in its ledger what was acknowledged.

A publisher sends one message after the other to whichever broker takes it. Without an answer it does not know what
became of a message, and goes on with the next one on another connection.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import nats
import paho.mqtt.client as mqtt
import pika
from confluent_kafka import Producer
from nats.js.api import StorageType
from paho.mqtt.enums import CallbackAPIVersion

from mainstem.testing.ledger import Ledger
from tests.cluster.kit import Cluster

ANSWER_S = 5.0
QUEUE, STREAM = "orders", "EVENTS"
MQTT_TOPIC, KAFKA_TOPIC, SUBJECT = "plant/line", "payments", "events.one"


class Publisher(threading.Thread):
    """`connect(port)` gives a function that sends one payload and returns once it is acknowledged, or raises."""

    protocol = ""

    def __init__(self, cluster: Cluster, name: str, namespace: str = "", password: str = "any") -> None:
        """In the first namespace unless one is named; then it logs in as `NAMESPACE:device`."""
        super().__init__(name=f"{namespace}{name}", daemon=True)
        self.namespace, self.password = namespace, password
        self.sessions = 0  # how often it connected
        self.ledger = Ledger(self.name)
        self._cluster, self._stopped = cluster, threading.Event()
        self._numbers = itertools.count()
        self.acked = 0
        self.last_error = ""

    def run(self) -> None:
        brokers = itertools.cycle(self._cluster.brokers.values())
        while not self._stopped.is_set():
            broker = next(brokers)
            if not broker.running:
                continue
            self.sessions += 1
            try:
                self.session(broker.host, broker.ports[self.protocol])
            except Exception as error:
                self.last_error = repr(error)
                self._stopped.wait(0.1)

    @property
    def user(self) -> str:
        return f"{self.namespace}:device"

    def session(self, host: str, port: int) -> None:
        raise NotImplementedError

    def send_all(self, send: Callable[[bytes], None]) -> None:
        while not self._stopped.is_set():
            number = next(self._numbers)
            send(self.ledger.payload("p", number))
            self.ledger.ok("p", number)
            self.acked += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)
        assert not self.is_alive()

    def wait_acked(self, more: int) -> None:
        self._cluster.until(lambda target=self.acked + more: self.acked >= target)


class MqttPublisher(Publisher):
    protocol = "mqtt"

    def session(self, host: str, port: int) -> None:
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=self.name)
        if self.namespace:
            client.username_pw_set(self.user, self.password)
        client.connect(host, port, keepalive=5)
        client.loop_start()
        try:
            _until(client.is_connected)

            def send(payload: bytes) -> None:
                sent = client.publish(MQTT_TOPIC, payload, qos=1)
                sent.wait_for_publish(ANSWER_S)
                assert sent.is_published()

            self.send_all(send)
        finally:
            client.disconnect()
            client.loop_stop()


class KafkaPublisher(Publisher):
    protocol = "kafka"

    def session(self, host: str, port: int) -> None:
        settings: dict[str, object] = {"message.timeout.ms": ANSWER_S * 1000, "socket.timeout.ms": 3000, "log_level": 0}
        settings |= {"acks": "all", "enable.idempotence": True, "linger.ms": 0}
        producer = Producer({"bootstrap.servers": f"{host}:{port}", **settings, **kafka_login(self)})

        def send(payload: bytes) -> None:
            errors: list[object] = []
            producer.produce(KAFKA_TOPIC, payload, on_delivery=lambda error, _: errors.append(error))
            producer.flush(ANSWER_S)
            assert errors == [None]

        try:
            self.send_all(send)
        finally:
            producer.purge()


class AmqpPublisher(Publisher):
    protocol = "amqp"

    def session(self, host: str, port: int) -> None:
        given = pika.ConnectionParameters(host, port, socket_timeout=3, blocked_connection_timeout=ANSWER_S)
        given.heartbeat = 5
        if self.namespace:
            given.virtual_host = self.namespace
            given.credentials = pika.PlainCredentials(self.user, self.password)
        connection = pika.BlockingConnection(given)
        try:
            channel = connection.channel()
            channel.queue_declare(QUEUE, durable=True)
            channel.confirm_delivery()
            persistent = pika.BasicProperties(delivery_mode=2)
            self.send_all(lambda payload: channel.basic_publish("", QUEUE, payload, persistent, mandatory=True))
        finally:
            connection.close()


class NatsPublisher(Publisher):
    protocol = "nats"

    def session(self, host: str, port: int) -> None:
        asyncio.run(self._session(host, port))

    async def _session(self, host: str, port: int) -> None:
        options: dict[str, Any] = {"allow_reconnect": False, "connect_timeout": 5, "error_cb": _ignore}
        if self.namespace:
            options |= {"user": self.user, "password": self.password}
        client = await nats.connect(f"nats://{host}:{port}", **options)
        try:
            js = client.jetstream(timeout=ANSWER_S)
            await js.add_stream(name=STREAM, subjects=["events.>"], storage=StorageType.FILE)
            while not self._stopped.is_set():
                number = next(self._numbers)
                await js.publish(SUBJECT, self.ledger.payload("p", number))
                self.ledger.ok("p", number)
                self.acked += 1
        finally:
            await client.close()


def kafka_login(publisher: Publisher) -> dict[str, str]:
    if not publisher.namespace:
        return {}
    plain = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    return {**plain, "sasl.username": publisher.user, "sasl.password": publisher.password}


async def _ignore(error: Exception) -> None:
    """It is raised where it concerns a message."""


def _until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ANSWER_S
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def start_all(cluster: Cluster, namespace: str = "", password: str = "any") -> list[Publisher]:
    kinds = (MqttPublisher, KafkaPublisher, AmqpPublisher, NatsPublisher)
    names = (kind.__name__.removesuffix("Publisher").lower() for kind in kinds)
    publishers = [kind(cluster, name, namespace, password) for kind, name in zip(kinds, names, strict=True)]
    for one in publishers:
        one.start()
    return publishers

"""One login and one publish by a stock client of each protocol: it is let in and done, or it is refused."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import httpx
import nats
import paho.mqtt.client as paho
import pika
import pika.exceptions
from paho.mqtt.enums import CallbackAPIVersion

from mainstem.testing import Broker

WAIT_S = 20


@dataclass(frozen=True)
class Secure:
    """Over TLS, with a certificate of its own if it has one."""

    ca: Path
    certificate: tuple[Path, Path] | None = None

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.certificate is not None:
            context.load_cert_chain(*self.certificate)
        return context


def mqtt(broker: Broker, topic: str, name: str, password: str, secure: Secure | None = None) -> bool:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    if name or password:
        client.username_pw_set(name, password)
    if secure is not None:
        client.tls_set_context(secure.context())
    answers: list[bool] = []
    came = threading.Event()

    def answer(good: bool) -> None:
        answers.append(good)
        came.set()

    client.on_connect = lambda c, u, f, reason, p: (
        answer(False) if reason.is_failure else c.publish(topic, b"x", qos=1) and None
    )
    client.on_publish = lambda c, u, mid, reason, p: answer(not reason.is_failure)
    client.connect("localhost" if secure else "127.0.0.1", broker.ports["mqtts" if secure else "mqtt"])
    client.loop_start()
    try:
        assert came.wait(WAIT_S)
    finally:
        client.disconnect()
        client.loop_stop()
    return answers[0]


def kafka(
    broker: Broker, topic: str, name: str, password: str, secure: Secure | None = None, mechanism: str = "PLAIN"
) -> bool:
    port = broker.ports["kafkas" if secure else "kafka"]
    sasl = bool(name or password)
    settings: dict[str, Any] = {
        "bootstrap.servers": f"{'localhost' if secure else '127.0.0.1'}:{port}",
        "security.protocol": f"{'SASL_' if sasl else ''}{'SSL' if secure else 'PLAINTEXT'}",
        "message.timeout.ms": 8_000,
        "socket.timeout.ms": 8_000,
        "log_level": 0,
        "allow.auto.create.topics": True,
    }
    if sasl:
        settings |= {"sasl.mechanisms": mechanism}
        if mechanism == "OAUTHBEARER":
            settings["oauth_cb"] = lambda _: (password, 4e9)
        else:
            settings |= {"sasl.username": name, "sasl.password": password}
    if secure is not None:
        settings |= {"ssl.ca.location": str(secure.ca)}
        if secure.certificate is not None:
            settings |= {"ssl.certificate.location": str(secure.certificate[0])}
            settings |= {"ssl.key.location": str(secure.certificate[1])}
    errors: list[Any] = []
    refused = threading.Event()

    def failed(error: confluent_kafka.KafkaError) -> None:
        if error.code() in (confluent_kafka.KafkaError._AUTHENTICATION, confluent_kafka.KafkaError._ALL_BROKERS_DOWN):
            refused.set()

    producer = confluent_kafka.Producer({**settings, "error_cb": failed})
    producer.produce(topic.replace("/", "."), b"x", on_delivery=lambda error, _: errors.append(error))
    for _ in range(WAIT_S * 20):
        producer.poll(0.05)
        if errors or refused.is_set():
            break
    producer.purge()
    producer.flush(1)
    return bool(errors) and errors[0] is None


def amqp(broker: Broker, topic: str, name: str, password: str, secure: Secure | None = None, vhost: str = "/") -> bool:
    login: Any = pika.PlainCredentials(name, password)
    options = None
    if secure is not None:
        options = pika.SSLOptions(secure.context(), "localhost")
        if not name and not password:
            login = pika.credentials.ExternalCredentials()
    where = pika.ConnectionParameters(
        "localhost" if secure else "127.0.0.1",
        broker.ports["amqps" if secure else "amqp"],
        vhost,
        login,
        ssl_options=options,
    )
    try:
        with pika.BlockingConnection(where) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("amq.topic", topic.replace("/", "."), b"x")
    except (pika.exceptions.AMQPError, pika.exceptions.StreamLostError):
        return False
    return True


def nats_(broker: Broker, topic: str, name: str, password: str, secure: Secure | None = None) -> bool:
    async def ask() -> bool:
        errors: list[Exception] = []

        async def keep(error: Exception) -> None:
            errors.append(error)

        login: dict[str, Any] = {"user": name, "password": password} if name else {"token": password}
        if not name and not password:
            login = {}
        if secure is not None:
            login |= {"tls": secure.context(), "tls_handshake_first": True}
        url = f"{'tls://localhost' if secure else 'nats://127.0.0.1'}:{broker.ports['natss' if secure else 'nats']}"
        try:
            client = await nats.connect(url, allow_reconnect=False, error_cb=keep, max_reconnect_attempts=1, **login)
        except Exception:
            return False
        try:
            await client.publish(topic.replace("/", "."), b"x")
            for _ in range(3):  # its PING may overtake what it publishes
                await client.flush()
                await asyncio.sleep(0.01)
            return not errors
        finally:
            await client.close()

    return asyncio.run(ask())


def http(broker: Broker, topic: str, name: str, password: str, secure: Secure | None = None) -> bool:
    base = f"https://localhost:{broker.ports['https']}" if secure else broker.http_url
    headers = {"Authorization": f"Bearer {password}"} if password and not name else {}
    auth = httpx.BasicAuth(name, password) if name else None
    verify: Any = secure.context() if secure else True
    with httpx.Client(base_url=base, headers=headers, auth=auth, verify=verify, timeout=WAIT_S) as client:
        status = client.post("/v1/messages", json={"topic": topic, "value": "x"}).status_code
    assert status in (200, 401, 403)
    return status == 200


KNOCKS: dict[str, Callable[..., bool]] = {"mqtt": mqtt, "kafka": kafka, "amqp": amqp, "nats": nats_, "http": http}

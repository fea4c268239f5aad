"""The table of protocols. Adding one is a folder under `protocols/` and an entry here; everything else derives from it:
listeners with their TLS twins, settings, command-line options, counters, the console's doors and spellings, clients and
load generators, test brokers.

A protocol has one or more doors. The twin of a door with TLS is called like it with an `s` behind, and shares its server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mainstem.model.topic import amqp_key, kafka_name, nats_subject, topic_of_amqp, topic_of_kafka, topic_of_nats


@dataclass(frozen=True, slots=True)
class Door:
    """One listener, and what its page and the console say of it."""

    name: str
    label: str
    port: int
    tls_port: int
    server: str  # module:class, made with the broker and the configuration
    doc: str
    hint: str  # a command or an address that works; {port}, {path} and {login} are filled in
    tls_hint: str
    login: str = ""  # what stands for {login} once users exist
    anonymous: str = ""  # and before

    @property
    def tls_name(self) -> str:
        return f"{self.name}s"


@dataclass(frozen=True, slots=True)
class Protocol:
    name: str  # also the scheme of its addresses
    doors: tuple[Door, ...]  # the first is where its own clients connect
    spell: Callable[[bytes], str]  # a canonical topic as its clients write it
    client: str  # module:class behind `mainstem pub` and `sub`
    options: tuple[str, ...]  # of an address, behind `?`
    example: str  # an address
    topic_of: Callable[[str], bytes]  # and back
    load: str = ""  # module under `server/load`: empty where `mainstem bench` cannot drive it
    ws_path: str = ""  # of the WebSocket door, beside MQTT's own: where its clients come in by WebSocket

    @property
    def port(self) -> int:
        return self.doors[0].port

    @property
    def tls_port(self) -> int:
        return self.doors[0].tls_port


PROTOCOLS: tuple[Protocol, ...] = (
    Protocol(
        "mqtt",
        (
            Door(
                "mqtt",
                "MQTT",
                1883,
                8883,
                "mainstem.protocols.mqtt.server:MqttServer",
                "MQTT 3.1.1 and 5.",
                "mosquitto_sub -p {port}{login} -t '#' -v",
                "mosquitto_sub -p {port} --cafile ca.pem{login} -t '#' -v",
                " -u USER -P PASSWORD",
            ),
            Door(
                "ws",
                "MQTT over WebSocket",
                8083,
                8084,
                "mainstem.protocols.mqtt.server:MqttWebSocketServer",
                "MQTT over WebSocket, path `/mqtt`; NATS at `/nats`.",
                "ws://localhost:{port}{path}",
                "wss://localhost:{port}{path}",
            ),
        ),
        lambda name: name.decode(errors="replace"),
        "mainstem.server.clients.mqtt:MqttClient",
        ("client_id", "qos", "retain"),
        "mqtt://localhost/a/b",
        str.encode,
        "mqtt",
    ),
    Protocol(
        "kafka",
        (
            Door(
                "kafka",
                "Kafka",
                9092,
                9093,
                "mainstem.protocols.kafka.adapter:KafkaServer",
                "Kafka.",
                "kcat -b localhost:{port}{login} -L",
                "kcat -b localhost:{port} -X security.protocol=SSL -X ssl.ca.location=ca.pem{login} -L",
                " -X security.protocol=SASL_PLAINTEXT -X sasl.mechanisms=PLAIN"
                " -X sasl.username=USER -X sasl.password=PASSWORD",
            ),
        ),
        kafka_name,
        "mainstem.server.clients.kafka:KafkaClient",
        ("client_id",),
        "kafka://localhost/a.b",
        topic_of_kafka,
        "kafka",
    ),
    Protocol(
        "amqp",
        (
            Door(
                "amqp",
                "AMQP",
                5672,
                5671,
                "mainstem.protocols.amqp.adapter:AmqpServer",
                "AMQP 0-9-1.",
                "amqp://{login}@localhost:{port}/",
                "amqps://{login}@localhost:{port}/",
                "USER:PASSWORD",
                "guest:guest",
            ),
        ),
        lambda name: amqp_key(name).decode(errors="replace"),
        "mainstem.server.clients.amqp:AmqpClient",
        ("exchange", "queue", "vhost"),
        "amqp://localhost/a.b",
        lambda key: topic_of_amqp(key.encode()),
        "amqp",
    ),
    Protocol(
        "nats",
        (
            Door(
                "nats",
                "NATS",
                4222,
                4223,
                "mainstem.protocols.nats.adapter:NatsServer",
                "NATS.",
                "nats -s localhost:{port}{login} sub '>'",
                "nats -s tls://localhost:{port} --tlsfirst --tlsca ca.pem{login} sub '>'",
                " --user USER --password PASSWORD",
            ),
        ),
        lambda name: nats_subject(name).decode(errors="replace"),
        "mainstem.server.clients.nats:NatsClient",
        ("client_id",),
        "nats://localhost/a.b",
        lambda subject: topic_of_nats(subject.encode()),
        "nats",
        ws_path="/nats",
    ),
)

HTTP = Door(
    "http",
    "HTTP",
    7070,
    7443,
    "mainstem.admin.server:AdminServer",
    "HTTP API, metrics and console.",
    "curl{login} http://localhost:{port}/v1/overview",
    "curl --cacert ca.pem{login} https://localhost:{port}/v1/overview",
    " -u USER",
)


def doors() -> Iterator[Door]:
    """Of all protocols, then HTTP's."""
    for protocol in PROTOCOLS:
        yield from protocol.doors
    yield HTTP


def protocol_of_listener() -> dict[str, str]:
    """Listener → the protocol that its clients are counted under."""
    return {**{door.name: one.name for one in PROTOCOLS for door in one.doors}, HTTP.name: HTTP.name}


def by_name() -> dict[str, Protocol]:
    return {one.name: one for one in PROTOCOLS}


def load(target: str) -> Any:
    """What `module:name` means; imported when it is first needed."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)

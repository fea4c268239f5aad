"""Random rules: what each protocol answers is what a few lines say, on connections that were there before the rules."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pika
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from mainstem.broker.rights.rules import Action, Rule
from mainstem.testing import Broker
from tests.protocol.kafka.raw import batch_of
from tests.protocol.mqtt.raw import Raw, publish_packet
from tests.protocol.nats.raw import Raw as NatsRaw
from tests.security.attempts import Client
from tests.users import ANN, ROOT, add_users

TOPICS = ("a", "a/b", "b/b", "ann/x", "a/b/c")
FILTERS = ("#", "+", "a", "a/#", "a/+", "+/b", "a/b", "%u/#", "ann/+", "+/b/#", "b/b")
PUBLISH, CONSUME = Action.PUBLISH, Action.CONSUME
RULES = st.lists(
    st.builds(
        lambda allow, actions, pattern: Rule.make(allow=allow, actions=actions, pattern=pattern),
        st.booleans(),
        st.sets(st.sampled_from([PUBLISH, CONSUME, Action.DESCRIBE]), min_size=1),
        st.sampled_from(FILTERS),
    ),
    max_size=6,
)


def allowed(rules: list[Rule], action: Action, topic: str) -> bool:
    """The model: some rule allows it, none denies it."""
    said = {rule.allow for rule in rules if action in rule.actions and means(rule.filter.replace("%u", "ann"), topic)}
    return said == {True}


def means(pattern: str, topic: str) -> bool:
    spelled = re.escape(pattern).replace(r"/\#", "(/.*)?").replace(r"\#", ".*").replace(r"\+", "[^/]*")
    return re.fullmatch(spelled, topic) is not None


class Everywhere:
    """Ann, connected by every protocol."""

    def __init__(self, broker: Broker, stack: ExitStack) -> None:
        self.broker = broker
        login = {"username": ANN[0], "password": ANN[1].encode()}
        self.mqtt = stack.enter_context(Raw.connected(broker.mqtt_port, version=5, **login))
        self.kafka = stack.enter_context(Client(broker, ANN))
        self.nats = stack.enter_context(NatsRaw(broker.nats_port, user=ANN[0], **{"pass": ANN[1]}))
        self.http = stack.enter_context(httpx.Client(base_url=broker.http_url, auth=ANN, timeout=20))
        where = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, credentials=pika.PlainCredentials(*ANN))
        self.amqp = stack.enter_context(pika.BlockingConnection(where))
        self.number = 0

    def answers(self) -> dict[tuple[str, Action], Callable[[str], bool]]:
        return {
            ("mqtt", PUBLISH): self.mqtt_publish,
            ("mqtt", CONSUME): self.mqtt_consume,
            ("kafka", PUBLISH): lambda topic: self.kafka.produce(spelled(topic), batch_of([b"x"])).error_code != 29,
            ("kafka", CONSUME): self.kafka_consume,
            ("nats", PUBLISH): lambda topic: self.nats_says(b"PUB %s 1\r\nx\r\n", topic),
            ("nats", CONSUME): lambda topic: self.nats_says(b"SUB %s 7\r\nUNSUB 7\r\n", topic),
            ("amqp", PUBLISH): self.amqp_publish,
            ("amqp", CONSUME): lambda topic: self.amqp_consume(spelled(topic), {"x-stream-offset": "next"}),
            ("http", PUBLISH): lambda topic: self.http_says("POST", json={"topic": topic, "value": "x"}),
            ("http", CONSUME): lambda topic: self.http_says("GET", params={"topic": topic}),
        }

    def mqtt_publish(self, topic: str) -> bool:
        self.number = self.number % 60_000 + 1
        self.mqtt.send(publish_packet(topic, b"x", qos=1, version=5, packet_id=self.number))
        _, body = self.mqtt.packet()
        return len(body) == 2 or body[2] < 0x80

    def mqtt_consume(self, topic: str) -> bool:
        with Raw.connected(
            self.broker.mqtt_port, version=5, username=ANN[0], password=ANN[1].encode()
        ) as client:  # a subscription would bring what is published next
            return client.subscribe((topic, 1))[0] < 0x80

    def kafka_consume(self, topic: str) -> bool:
        answer = self.kafka.fetch(spelled(topic), 0).responses[0]
        return bool(answer.partitions[0].error_code != 29)

    def nats_says(self, line: bytes, topic: str) -> bool:
        self.nats.send(line % spelled(topic).encode())
        return not any(b"Permissions Violation" in one for one in self.nats.synced())

    def amqp_publish(self, topic: str) -> bool:
        return self.amqp_says(lambda channel: channel.basic_publish("amq.topic", spelled(topic), b"x"))

    def amqp_consume(self, queue: str, arguments: dict[str, str] | None = None) -> bool:
        return self.amqp_says(lambda channel: channel.basic_consume(queue, lambda *_: None, arguments=arguments))

    def amqp_says(self, ask: Callable[[BlockingChannel], object]) -> bool:
        channel = self.amqp.channel()
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=1)
        try:
            ask(channel)
        except ChannelClosedByBroker as closed:
            if closed.reply_code != 403:
                raise
            return False
        channel.close()
        return True

    def http_says(self, method: str, **request: object) -> bool:
        status = self.http.request(method, "/v1/messages", **request).status_code  # type: ignore[arg-type]
        assert status in (200, 403)
        return status == 200


def queue_allowed(rules: list[Rule], queue: str, topic: str) -> bool:
    """The model of a queue: its name is allowed, and nothing that enters it is denied."""
    denied = any(not r.allow and CONSUME in r.actions and means(r.filter.replace("%u", "ann"), topic) for r in rules)
    return allowed(rules, CONSUME, queue) and not denied


def box_of(topic: str) -> str:
    return f"box-{TOPICS.index(topic)}"


def spelled(topic: str) -> str:
    return topic.replace("/", ".")


@pytest.fixture(scope="module")
def everywhere() -> Iterator[Everywhere]:
    with ExitStack() as stack:
        broker = stack.enter_context(Broker())
        add_users(broker)
        with httpx.Client(base_url=broker.http_url, auth=ROOT, timeout=20) as root:
            for topic in TOPICS:
                root.post("/v1/messages", json={"topic": topic, "value": "x"}).raise_for_status()
        root_login = pika.PlainCredentials(*ROOT)
        where = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, credentials=root_login)
        with pika.BlockingConnection(where) as connection:
            channel = connection.channel()
            for topic in TOPICS:
                channel.queue_declare(box_of(topic), durable=True, arguments={"x-max-length": 10})
                channel.queue_bind(box_of(topic), "amq.topic", spelled(topic))
        yield Everywhere(broker, stack)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=RULES)
def test_every_protocol_answers_as_the_model_says(everywhere: Everywhere, rules: list[Rule]) -> None:
    broker = everywhere.broker
    assert broker.app is not None and broker.loop is not None
    access = broker.app.broker.access

    async def change() -> None:
        await access.set_rules(ANN[0], rules)

    asyncio.run_coroutine_threadsafe(change(), broker.loop).result(20)
    wrong = [
        (protocol, str(action), topic)
        for (protocol, action), ask in everywhere.answers().items()
        for topic in TOPICS
        if ask(topic) is not allowed(rules, action, topic)
    ]
    wrong += [
        ("amqp", "queue", topic)
        for topic in TOPICS
        if everywhere.amqp_consume(box_of(topic)) is not queue_allowed(rules, box_of(topic), topic)
    ]
    assert not wrong, [str(rule) for rule in rules]

"""A message published by HTTP (or from the console) with the fields of the protocols has them in each of them."""

from __future__ import annotations

import time
from typing import Any

import httpx
import paho.mqtt.client as paho
import pika
import pytest
from confluent_kafka import Consumer
from paho.mqtt.enums import CallbackAPIVersion

from mainstem.testing import Broker
from tests.protocol.nats.raw import Raw as Nats

BODY = {
    "topic": "fields/a",
    "value": "{}",
    "key": "k",
    "headers": {"region": "eu"},
    "content_type": "application/json",
    "correlation_id": "c-1",
    "message_id": "m-1",
    "reply_to": "answers/here",
    "priority": 7,
    "expires_ms": 600_000,
    "retain": True,
}


@pytest.fixture
def published() -> Any:
    with Broker() as broker:
        queue = {"name": "fields", "filter": "fields/#"}
        httpx.post(f"{broker.http_url}/v1/queues", json=queue).raise_for_status()
        httpx.post(f"{broker.http_url}/v1/messages", json=BODY).raise_for_status()
        yield broker


def test_mqtt_and_its_retained_message(published: Broker) -> None:
    got: list[paho.MQTTMessage] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.on_message = lambda _, __, message: got.append(message)
    client.connect(published.host, published.mqtt_port)
    client.loop_start()
    client.subscribe("fields/#", 1)
    deadline = time.monotonic() + 30
    while not got:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    client.loop_stop()
    client.disconnect()
    [message] = got
    told: Any = message.properties
    assert (message.topic, message.retain, message.payload) == ("fields/a", True, b"{}")
    assert (told.ContentType, told.ResponseTopic, told.CorrelationData) == ("application/json", "answers/here", b"c-1")
    assert 500 < told.MessageExpiryInterval <= 600
    properties = dict(told.UserProperty)
    assert (properties["region"], properties["priority"], properties["message-id"]) == ("eu", "7", "m-1")
    assert properties["ms-key"] == "k"


def test_amqp_and_kafka(published: Broker) -> None:
    with pika.BlockingConnection(pika.URLParameters(published.amqp_url)) as connection:
        channel = connection.channel()
        deadline = time.monotonic() + 30
        while (got := channel.basic_get("fields", auto_ack=True))[0] is None:
            assert time.monotonic() < deadline
        told = got[1]
        assert (got[0].routing_key, got[2]) == ("fields.a", b"{}")
        assert told.headers["ms-key"] == "k"
        assert (told.content_type, told.correlation_id, told.message_id) == ("application/json", "c-1", "m-1")
        assert (told.reply_to, told.priority, told.headers["region"]) == ("answers.here", 7, "eu")
        assert 500_000 < int(told.expiration) <= 600_000
    consumer = Consumer(
        {
            "bootstrap.servers": f"{published.host}:{published.kafka_port}",
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["fields.a"])
    record = None
    deadline = time.monotonic() + 60
    while record is None:
        assert time.monotonic() < deadline
        record = consumer.poll(0.5)
    headers = dict(record.headers())
    consumer.close()
    assert (record.key(), record.value()) == (b"k", b"{}")
    assert (headers["content-type"], headers["region"], headers["message-id"]) == (b"application/json", b"eu", b"m-1")
    assert 500_000 < int(headers["ms-expires-at"]) - time.time() * 1000 <= 600_000
    assert (headers["reply-to"], headers["correlation-id"], headers["ms-priority"]) == (b"answers.here", b"c-1", b"7")


def test_nats_hears_it_live(published: Broker) -> None:
    with Nats(published.nats_port) as listener:
        listener.send(b"SUB fields.* 1\r\n")
        assert listener.synced() == []
        httpx.post(f"{published.http_url}/v1/messages", json=BODY).raise_for_status()
        head = listener.line().split()
        block = listener.exactly(int(head[-2]))
        assert (head[:4], listener.line()) == ([b"HMSG", b"fields.a", b"1", b"answers.here"], b"{}")
        assert listener.synced() == []
    told = dict(line.split(b": ", 1) for line in block.split(b"\r\n")[1:-2])
    assert 500 < int(told.pop(b"Nats-TTL")) <= 600
    assert int(told.pop(b"Ms-Ts")) > 0
    told.pop(b"Ms-Retain", None)  # said for MQTT's, and not yet for HTTP's
    assert told == {
        b"Ms-Key": b"k",
        b"region": b"eu",
        b"Content-Type": b"application/json",
        b"Correlation-Id": b"c-1",
        b"Nats-Msg-Id": b"m-1",
        b"Ms-Priority": b"7",
        b"Ms-Origin": b"http",
    }


@pytest.mark.parametrize("wrong", [{"priority": 256}, {"expires_ms": 0}, {"expires_ms": -1}, {"retain": "yes"}])
def test_what_cannot_be_is_refused(published: Broker, wrong: dict[str, Any]) -> None:
    answer = httpx.post(f"{published.http_url}/v1/messages", json={**BODY, **wrong})
    assert answer.status_code == 400, answer.text
    stored = httpx.get(f"{published.http_url}/v1/messages", params={"topic": "fields/a", "from": "earliest"})
    assert len(stored.json()["items"]) == 1, "the one of before"

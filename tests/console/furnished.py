"""A broker with users and one of everything that has a page, its clients connected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import paho.mqtt.client as paho
import pika
import pika.exceptions
from confluent_kafka import Consumer, Producer
from paho.mqtt.enums import CallbackAPIVersion

from mainstem.testing import Broker

ADMIN = ("root", "secret-of-root")
NAMES = {
    "/topic": "name=orders",
    "/queue": "name=letterbox",
    "/exchange": "name=letters",
    "/view": "name=all-sensors",
    "/group": "name=billing",
    "/session": "name=historian",
    "/user": "name=clerk",
    "/subject": "name=orders-value",
    "/pipeline": "name=telemetry",
    "/namespace": "name=/",
    "/messages": "topic=sensors/kitchen/temp&field=celsius",
}


@contextmanager
def furnished() -> Iterator[Broker]:
    with Broker() as broker, httpx.Client(base_url=broker.http_url, auth=ADMIN) as http:
        for name, admin in ((ADMIN[0], True), ("clerk", False)):
            http.post("/v1/users", json={"name": name, "password": ADMIN[1], "admin": admin}).raise_for_status()
        rule = {"allow": True, "actions": ["consume", "describe"], "filter": "sensors/#"}
        http.post("/v1/users/clerk/rules", json=rule).raise_for_status()
        reading = {"topic": "sensors/kitchen/temp", "value_json": {"celsius": 21.5}, "headers": {"region": "eu"}}
        for _ in range(20):
            http.post("/v1/messages", json=reading).raise_for_status()
        http.post("/v1/views", json={"name": "all-sensors", "filter": "sensors/#"}).raise_for_status()
        schema = json.dumps({"type": "record", "name": "order", "fields": [{"name": "id", "type": "int"}]})
        http.post("/subjects/orders-value/versions", json={"schema": schema}).raise_for_status()
        flows = [{"flow": "archive", "state": "running", "lag": 1_200, "rows": 5_000, "error": "no broker answers"}]
        http.post("/v1/pipelines/telemetry", json={"flows": flows}).raise_for_status()
        with clients(broker):
            yield broker


@contextmanager
def clients(broker: Broker) -> Iterator[None]:
    session = paho.Client(CallbackAPIVersion.VERSION2, client_id="historian", clean_session=False)
    session.username_pw_set(*ADMIN)
    session.connect(broker.host, broker.mqtt_port)
    session.subscribe("sensors/#", 1)
    session.loop_start()
    login = pika.PlainCredentials(*ADMIN)
    with (
        suppress(pika.exceptions.ConnectionClosedByBroker),  # a test may disconnect it
        pika.BlockingConnection(
            pika.ConnectionParameters(broker.host, broker.amqp_port, credentials=login, heartbeat=0)
        ) as amqp,
    ):
        channel = amqp.channel()
        channel.exchange_declare("letters", "topic", durable=True)
        channel.queue_declare("letterbox", durable=True)
        channel.queue_bind("letterbox", "letters", "north.#")
        channel.confirm_delivery()
        for number in range(3):
            channel.basic_publish("letters", f"north.{number}", b"a letter")
            method, _, _ = channel.basic_get("letterbox")
            channel.basic_reject(method.delivery_tag, requeue=False)
        channel.basic_consume("letterbox", lambda *_: None)
        kafka = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": ADMIN[0],
            "sasl.password": ADMIN[1],
        }
        producer = Producer(kafka)
        producer.produce("orders", b"an order")
        assert producer.flush(30) == 0
        consumer = Consumer({**kafka, "group.id": "billing", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        while consumer.poll(1) is None:  # the test's own timeout ends it
            pass
        yield
        consumer.close()
    session.loop_stop()
    session.disconnect()

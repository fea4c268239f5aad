"""A rule that denies wins: through views, streams, queues, SQL and archives. Groups and transactional ids have owners."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import httpx
import pika
import pytest
from confluent_kafka.admin import AdminClient
from pika.exceptions import ChannelClosedByBroker

from mainstem.testing import Broker
from tests.protocol.mqtt.raw import Raw
from tests.users import ROOT

ANN, BEN = ("ann", "pass word"), ("ben", "pass word")
WAIT_S = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Ann may consume everything but `a/secret`; two views of an admin's show it, one of which grants it."""
    with Broker() as one, httpx.Client(base_url=one.http_url, timeout=20) as http:
        http.post("/v1/users", json={"name": ROOT[0], "password": ROOT[1], "admin": True}).raise_for_status()
        http.auth = httpx.BasicAuth(*ROOT)
        for name, _ in (ANN, BEN):
            http.post("/v1/users", json={"name": name, "password": "pass word"}).raise_for_status()
            rule = {"actions": ["publish", "consume", "create", "describe"], "filter": "#"}
            http.post(f"/v1/users/{name}/rules", json=rule).raise_for_status()
        denied = {"allow": False, "actions": ["consume"], "filter": "a/secret"}
        http.post("/v1/users/ann/rules", json=denied).raise_for_status()
        http.post("/v1/topics", json={"name": "a/own", "settings": {"layout": "dedicated"}}).raise_for_status()
        http.post("/v1/views", json={"name": "all", "filter": "a/#"}).raise_for_status()
        http.post("/v1/views", json={"name": "granted", "filter": "a/#", "grants": True}).raise_for_status()
        http.post("/v1/views", json={"name": "table", "filter": "a/#", "last_by": "topic"}).raise_for_status()
        for topic in ("a/secret", "a/open", "a/own"):
            http.post("/v1/messages", json={"topic": topic, "value": f"in {topic}"}).raise_for_status()
        yield one


SHOWN = {"all": {"in a/open", "in a/own"}, "granted": {"in a/open", "in a/own", "in a/secret"}}


def kafka(broker: Broker, user: tuple[str, str], **settings: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user[0],
        "sasl.password": user[1],
        **settings,
    }


@pytest.mark.parametrize("view", SHOWN)
def test_by_http(broker: Broker, view: str) -> None:
    answer = httpx.get(f"{broker.http_url}/v1/messages", params={"view": view}, auth=ANN).json()
    assert {row["value"] for row in answer["items"]} == SHOWN[view]


def test_by_http_as_a_table(broker: Broker) -> None:
    answer = httpx.get(f"{broker.http_url}/v1/tables/table", auth=ANN).json()
    assert {row["value"] for row in answer["items"]} == SHOWN["all"]
    assert httpx.get(f"{broker.http_url}/v1/tables/table?key=a/secret", auth=ANN).status_code == 404


@pytest.mark.parametrize("view", SHOWN)
def test_by_kafka(broker: Broker, view: str) -> None:
    options = {"group.id": f"ann-{view}", "auto.offset.reset": "earliest", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(kafka(broker, ANN, **options))
    consumer.subscribe([view])
    found: set[str] = set()
    ends: set[int] = set()
    deadline = time.monotonic() + WAIT_S
    slots = len(consumer.list_topics(view, timeout=10).topics[view].partitions)
    while len(ends) < slots and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error():
            ends.add(message.partition())
        elif message is not None:
            found.add(message.value().decode())
    consumer.close()
    assert found == SHOWN[view]


@pytest.mark.parametrize("view", SHOWN)
def test_by_mqtt(broker: Broker, view: str) -> None:
    with Raw.connected(broker.mqtt_port, version=5, username=ANN[0], password=b"pass word") as ann:
        assert ann.subscribe((f"$stream/{view}", 0)) == [0]
        found = {ann.message().payload.decode() for _ in SHOWN[view]}
        ann.nothing_more()
    assert found == SHOWN[view]


@pytest.mark.parametrize("view", SHOWN)
def test_by_amqp(broker: Broker, view: str) -> None:
    login = pika.PlainCredentials(*ANN)
    where = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, credentials=login)
    with pika.BlockingConnection(where) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        found = set()
        arguments = {"x-stream-offset": "first"}
        for _, _, body in channel.consume(view, inactivity_timeout=1, arguments=arguments):
            if body is None:
                break
            found.add(body.decode())
        channel.cancel()
    assert found == SHOWN[view]


def test_a_queue_that_takes_in_what_is_denied_is_refused(broker: Broker) -> None:
    made = {"name": "work", "filter": "a/#"}
    httpx.post(f"{broker.http_url}/v1/queues", json=made, auth=ROOT).raise_for_status()
    assert (
        httpx.post(f"{broker.http_url}/v1/queues", json={"name": "anns", "filter": "a/#"}, auth=ANN).status_code == 403
    )
    login = pika.PlainCredentials(*ANN)
    where = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, credentials=login)
    with pika.BlockingConnection(where) as connection:
        for take in ("basic_consume", "basic_get"):
            channel = connection.channel()
            with pytest.raises(ChannelClosedByBroker, match=r"^\(403, .*of which a rule denies user ann some"):
                channel.basic_get("work") if take == "basic_get" else channel.basic_consume("work", lambda *_: None)
    with Raw.connected(broker.mqtt_port, version=5, username=ANN[0], password=b"pass word") as ann:
        assert ann.subscribe(("$queue/work", 1)) == [0x87]
    got = httpx.post(f"{broker.http_url}/api/queues/%2F/work/get", json={"count": 1}, auth=ANN)
    assert got.status_code == 401


def test_archives_need_someone_to_whom_nothing_is_denied(broker: Broker) -> None:
    assert httpx.post(f"{broker.http_url}/v1/archives/x", json={"ends": {}}, auth=ANN).status_code == 403


def test_only_an_admin_makes_a_view_that_grants(broker: Broker) -> None:
    view = {"name": "mine", "filter": "b/#", "grants": True}
    assert httpx.post(f"{broker.http_url}/v1/views", json=view, auth=BEN).status_code == 403
    assert httpx.get(f"{broker.http_url}/v1/views/granted", auth=BEN).json()["grants"] is True


def test_a_group_is_its_users(broker: Broker) -> None:
    options = {"group.id": "anns-group", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    owner = confluent_kafka.Consumer(kafka(broker, ANN, **options))
    owner.subscribe(["all"])
    message = None
    deadline = time.monotonic() + WAIT_S
    while message is None and time.monotonic() < deadline:
        message = owner.poll(0.5)
    assert message is not None and not message.error()
    owner.commit(message, asynchronous=False)
    owner.close()
    ben = AdminClient(kafka(broker, BEN))
    assert "anns-group" not in {one.group_id for one in ben.list_consumer_groups().result(10).valid}
    for asked in (ben.describe_consumer_groups(["anns-group"]), ben.delete_consumer_groups(["anns-group"])):
        with pytest.raises(confluent_kafka.KafkaException, match=r"(?i)authorization"):
            asked["anns-group"].result(10)
    thief = confluent_kafka.Consumer(kafka(broker, BEN, **options))
    with pytest.raises(confluent_kafka.KafkaException, match=r"(?i)authorization"):
        thief.committed([confluent_kafka.TopicPartition("all", 0)], timeout=10)
    with pytest.raises(confluent_kafka.KafkaException, match=r"(?i)authorization"):
        thief.commit(offsets=[confluent_kafka.TopicPartition("all", 0, 1)], asynchronous=False)
    thief.close()
    assert httpx.get(f"{broker.http_url}/v1/groups/anns-group", auth=BEN).status_code == 403
    assert "anns-group" not in httpx.get(f"{broker.http_url}/v1/groups", auth=BEN).text
    assert httpx.delete(f"{broker.http_url}/v1/groups/anns-group", auth=BEN).status_code == 403
    rule = {"actions": ["describe", "delete"], "filter": "anns-*", "kind": "group"}
    httpx.post(f"{broker.http_url}/v1/users/ben/rules", json=rule, auth=ROOT).raise_for_status()
    assert ben.describe_consumer_groups(["anns-group"])["anns-group"].result(10).group_id == "anns-group"
    assert ben.delete_consumer_groups(["anns-group"])["anns-group"].result(10) is None


def test_a_transactional_id_is_its_users(broker: Broker) -> None:
    owner = confluent_kafka.Producer(kafka(broker, ANN, **{"transactional.id": "anns-id"}))
    owner.init_transactions(10)
    owner.begin_transaction()
    owner.produce("paid", b"once")
    owner.flush(10)
    thief = confluent_kafka.Producer(kafka(broker, BEN, **{"transactional.id": "anns-id"}))
    with pytest.raises(confluent_kafka.KafkaException, match=r"(?i)authorization"):
        thief.init_transactions(10)
    owner.commit_transaction(10)

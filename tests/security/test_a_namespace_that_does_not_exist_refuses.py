"""Users of a namespace that does not exist get in by no protocol, and never see or write another namespace's topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import httpx
import pika
import pytest
from confluent_kafka.admin import AdminClient

from mainstem.broker.rights.access import Access
from mainstem.metadata.sqlite import SqliteStore
from mainstem.storage.directory import DataDirectory
from mainstem.testing import Broker
from tests.protocol.mqtt.raw import Raw, connect_packet, unique
from tests.users import ROOT

EVE = ("eve", "pass word")
NOT_AUTHORIZED_3, NOT_AUTHORIZED_5 = 4, 0x86


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """As an earlier version left it: a user of `t1`, which was never made."""
    directory = DataDirectory(tmp_path / "data")
    store = SqliteStore(directory.path / "metadata.sqlite")
    access = Access(store, namespaces={"/", "t1"})
    access.add_user(*ROOT, admin=True).result()
    access.add_user(*EVE, namespace="t1").result()
    access.add_rule("eve", allow=True, actions=["publish", "consume", "create", "describe"], topic_filter="#").result()
    store.close()
    directory.release()
    with Broker(data=tmp_path / "data") as one:
        yield one


@pytest.fixture
def root(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, auth=ROOT, timeout=20) as client:
        yield client


def mqtt_code(broker: Broker, version: int) -> int:
    with Raw(broker.mqtt_port, version=version) as client:
        client.send(connect_packet(unique("eve"), version=version, username="eve", password=b"pass word"))
        return client.packet()[1][1]


def kafka_settings(broker: Broker, mechanism: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "eve",
        "sasl.password": "pass word",
    }


def kafka_refusal(broker: Broker, mechanism: str) -> str:
    found: list[str] = []
    client = AdminClient({**kafka_settings(broker, mechanism), "error_cb": lambda error: found.append(str(error))})
    with pytest.raises(confluent_kafka.KafkaException):
        client.list_topics(timeout=5)
    client.poll(1)
    return " ".join(found)


def amqp(broker: Broker, vhost: str) -> pika.BlockingConnection:
    login = pika.PlainCredentials(*EVE)
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", broker.amqp_port, vhost, credentials=login, connection_attempts=1)
    )


def test_a_login_is_refused_by_every_protocol_and_the_start_says_how_to_mend_it(broker: Broker) -> None:
    assert mqtt_code(broker, 4) == NOT_AUTHORIZED_3
    assert mqtt_code(broker, 5) == NOT_AUTHORIZED_5
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert "which does not exist" in kafka_refusal(broker, mechanism)
    for vhost in ("/", "t1"):
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            amqp(broker, vhost)
    answer = httpx.get(f"{broker.http_url}/v1/topics", auth=EVE)
    assert (answer.status_code, answer.json()["fix"]) == (401, "mainstem namespace add t1")
    assert broker.app is not None
    assert [
        "user eve belongs to namespace 't1'" in one and "mainstem namespace add t1" in one for one in broker.app.notices
    ] == [True]


def test_no_user_is_added_to_it(broker: Broker, root: httpx.Client) -> None:
    answer = root.post("/v1/users", json={"name": "ann", "password": "pw", "namespace": "t2"})
    assert (answer.status_code, answer.json()["fix"]) == (404, "mainstem namespace add t2")
    assert root.get("/v1/users/ann").status_code == 404


def test_once_it_exists_what_its_user_publishes_lies_there_and_nowhere_else(broker: Broker, root: httpx.Client) -> None:
    mqtt_code(broker, 4)
    for _ in range(2):  # the second changes nothing
        assert root.post("/v1/namespaces", json={"name": "t1"}).status_code == 200
    with Raw.connected(broker.mqtt_port, username="eve", password=b"pass word") as eve:
        eve.publish("from/mqtt", b"x", qos=1)
    producer = confluent_kafka.Producer(kafka_settings(broker, "SCRAM-SHA-256"))
    producer.produce("from.kafka", b"x")
    assert producer.flush(20) == 0
    with amqp(broker, "t1") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "from.amqp", b"x")
    httpx.post(f"{broker.http_url}/v1/messages", auth=EVE, json={"topic": "from/http", "value": "x"}).raise_for_status()

    def names(namespace: str) -> set[str]:
        return {row["name"] for row in root.get("/v1/topics", params={"namespace": namespace}).json()["items"]}

    assert names("t1") == {"from/mqtt", "from/kafka", "from/amqp", "from/http"}
    assert names("/") == set()

"""Removing a tenant, seen from outside: its clients are told, its space comes back, its neighbour notices nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pytest
from confluent_kafka import Producer
from pika.exceptions import ConnectionClosedByBroker

from mainstem.testing import Broker
from tests.cli.commands import run, said
from tests.crossing.commands import eventually
from tests.protocol.mqtt.raw import Raw
from tests.users import ROOT

LEFT, RIGHT = ("ann", "pass word"), ("bob", "pass word")
EVERYTHING = ["publish", "consume", "create", "configure", "delete", "describe"]
ADMINISTRATIVE_ACTION = 0x98


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(data: Path) -> Iterator[Broker]:
    with Broker(engine="segment", data=data) as one:
        yield one


@pytest.fixture
def root(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, timeout=30) as http:
        http.post("/v1/users", json={"name": ROOT[0], "password": ROOT[1], "admin": True}).raise_for_status()
        http.auth = httpx.BasicAuth(*ROOT)
        for (name, password), namespace in ((LEFT, "left"), (RIGHT, "right")):
            http.put(f"/v1/namespaces/{namespace}").raise_for_status()
            http.post("/v1/users", json={"name": name, "password": password, "namespace": namespace}).raise_for_status()
            rule = {"actions": EVERYTHING, "filter": "#"}
            http.post(f"/v1/users/{name}/rules", json=rule).raise_for_status()
        yield http


def mqtt(broker: Broker, user: tuple[str, str], client_id: str = "", **options: object) -> Raw:
    return Raw.connected(broker.mqtt_port, client_id, version=5, username=user[0], password=user[1].encode(), **options)


def amqp(broker: Broker, user: tuple[str, str], vhost: str) -> pika.BlockingConnection:
    login = pika.PlainCredentials(*user)
    where = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, vhost, credentials=login)
    return pika.BlockingConnection(where)


def nats(broker: Broker, user: tuple[str, str]) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", broker.nats_port), timeout=10)
    client.sendall(b'CONNECT {"user":"%s","pass":"%s"}\r\nPING\r\n' % (user[0].encode(), user[1].encode()))
    said = b""
    while b"PONG" not in said:
        said += client.recv(4096)
    return client


def produce(broker: Broker, user: tuple[str, str], count: int) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user[0],
            "sasl.password": user[1],
        }
    )
    for _ in range(count):
        producer.produce("stream", os.urandom(64 * 1024))
    assert producer.flush(20) == 0
    return producer


def size_of(directory: Path) -> int:
    """Without the room that the broker keeps for a full disk, which is reserved some time after a start."""
    files = (one for one in directory.rglob("*") if one.is_file() and one.name != "ballast")
    return sum(one.stat().st_blocks * 512 for one in files)


def test_every_client_of_it_is_told_and_none_of_its_neighbours(broker: Broker, root: httpx.Client, data: Path) -> None:
    before = size_of(data)
    left_mqtt, right_mqtt = mqtt(broker, LEFT), mqtt(broker, RIGHT)
    right_mqtt.subscribe(("news", 1))
    left_amqp, admins_amqp, right_amqp = (
        amqp(broker, LEFT, "left"),
        amqp(broker, ROOT, "left"),
        amqp(broker, RIGHT, "right"),
    )
    left_nats, right_nats = nats(broker, LEFT), nats(broker, RIGHT)
    kept = produce(broker, LEFT, 100), produce(broker, RIGHT, 1)
    assert size_of(data) - before > 100 * 64 * 1024
    refused = root.delete("/v1/namespaces/left")
    assert refused.status_code == 400 and "1 topic" in refused.json()["detail"]
    assert root.delete("/v1/namespaces/left?with_data=true").json()["contents"]["users"] == 1
    assert size_of(data) - before < 16 * 64 * 1024 * 8  # preallocated parts of the neighbour at most
    kind, body = left_mqtt.packet()
    assert (kind >> 4, body[0]) == (14, ADMINISTRATIVE_ACTION)
    for connection in (left_amqp, admins_amqp):
        with pytest.raises(ConnectionClosedByBroker, match="namespace left was removed"):
            connection.process_data_events(10)
    left_nats.settimeout(10)
    while left_nats.recv(4096):
        pass
    rows = root.get("/v1/connections").json()["items"]
    assert {row["namespace"] for row in rows} - {""} == {
        "right"
    }  # of left's producer, which tries to log in again, none
    right_amqp.channel().basic_publish("amq.topic", "news", b"still here")
    assert right_mqtt.message().payload == b"still here"
    right_nats.sendall(b"PING\r\n")
    assert b"PONG" in right_nats.recv(4096)
    right_amqp.close()
    left_nats.close(), right_nats.close()
    assert len(kept) == 2
    with pytest.raises(AssertionError):
        mqtt(broker, LEFT)


def test_a_will_of_a_removed_tenant_is_not_sent_and_no_session_is_inherited(broker: Broker, root: httpx.Client) -> None:
    with mqtt(
        broker, LEFT, "device", clean=False, will=("left/will", b"gone", 1, True), properties={0x11: 1000}
    ) as one:
        one.subscribe(("#", 1))
        root.delete("/v1/namespaces/left?with_data=true").raise_for_status()
    root.put("/v1/namespaces/left").raise_for_status()
    root.post("/v1/users", json={"name": LEFT[0], "password": LEFT[1], "namespace": "left"}).raise_for_status()
    root.post(f"/v1/users/{LEFT[0]}/rules", json={"actions": EVERYTHING, "filter": "#"}).raise_for_status()
    with mqtt(broker, LEFT, "device", clean=False, properties={0x11: 1000}) as again:
        again.subscribe(("#", 1))
        again.nothing_more()
    assert root.get("/v1/namespaces/left").json()["contents"] == {"sessions": 1, "users": 1}


def test_the_calls_of_terraform_and_rabbitmqadmin_may_be_made_again(root: httpx.Client) -> None:
    wanted = {"policy": {"retention_ms": 60_000, "engine": "memory"}, "auto_create": False}
    answers = [root.put("/v1/namespaces/made", json=wanted).json() for _ in range(2)]
    assert answers[0] == answers[1] == root.get("/v1/namespaces/made").json()
    assert {key: answers[0][key] for key in wanted} == wanted
    assert root.put("/v1/namespaces/made", json={"auto_create": True}).json()["policy"] == {}
    assert root.patch("/v1/namespaces/made", json={"policy": {"durability": "none"}}).json()["auto_create"] is True
    for wrong in ({"policy": {"retenton_ms": 1}}, {"policy": {"retention_ms": "x"}}, {"auto_creat": True}, {}):
        assert root.patch("/v1/namespaces/made", json=wrong).status_code == 400
    assert root.delete("/v1/namespaces/made").status_code == 200
    assert root.delete("/v1/namespaces/made").status_code == 404
    assert [root.put("/api/vhosts/made").status_code for _ in range(2)] == [201, 204]
    root.put("/api/queues/made/work", json={}).raise_for_status()
    assert [root.delete("/api/vhosts/made").status_code for _ in range(2)] == [204, 404]
    assert root.delete("/v1/namespaces/%2F?with_data=true").status_code == 400
    with httpx.Client(base_url=root.base_url, auth=LEFT) as ann:
        for call in (
            ann.put("/v1/namespaces/right"),
            ann.delete("/v1/namespaces/left"),
            ann.delete("/api/vhosts/left"),
        ):
            assert call.status_code in (401, 403)


def test_a_deleted_topic_of_the_shared_log_does_not_count(broker: Broker, root: httpx.Client) -> None:
    """Its records wait for retention; the namespace is empty all the same."""
    root.put("/v1/namespaces/short", json={}).raise_for_status()
    here = {"namespace": "short"}
    for name in ("a", "b"):
        root.post("/v1/messages", json={"topic": name, "value": "x"}, params=here).raise_for_status()
    root.delete("/v1/topics/a", params=here).raise_for_status()
    refused = root.delete("/v1/namespaces/short")
    assert refused.status_code == 400 and "1 topic" in refused.text
    root.post("/v1/messages", json={"topic": "a", "value": "again"}, params=here).raise_for_status()
    assert "2 topics" in root.delete("/v1/namespaces/short").text
    for name in ("a", "b"):
        root.delete(f"/v1/topics/{name}", params=here).raise_for_status()
    assert root.get("/v1/topics", params=here).json()["total"] == 0
    assert root.delete("/v1/namespaces/short").status_code == 200


def test_kafka_clients_make_topics_only_where_the_namespace_says_so(broker: Broker, root: httpx.Client) -> None:
    root.patch("/v1/namespaces/left", json={"auto_create": False}).raise_for_status()
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": LEFT[0],
            "sasl.password": LEFT[1],
            "message.timeout.ms": 2000,
        }
    )
    producer.produce("unknown", b"x", on_delivery=lambda error, _: failed.append(error))
    producer.flush(20)
    assert failed and failed[0] is not None
    produce(broker, RIGHT, 1)


def test_the_command_line_alters_and_removes(
    broker: Broker, root: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSTEM_URL", broker.http_url.replace("//", f"//{ROOT[0]}:{ROOT[1]}@"))
    assert "changed namespace left" in said("namespace", "alter", "left", "--retention", "1h", "--auto-create", "off")
    shown = said("namespace", "describe", "left")
    assert "retention_ms" in shown and "auto_create" in shown
    said("namespace", "alter", "left", "--retention", "default", "--auto-create", "default")
    facts = root.get("/v1/namespaces/left").json()
    assert facts["policy"] == {} and facts["auto_create"] is None
    assert "nothing to change" in run("namespace", "alter", "left").stderr
    refused = run("namespace", "rm", "left")
    assert refused.returncode != 0 and "holds 1 user" in refused.stderr and "--with-data" in refused.stderr
    assert "add --yes" in run("namespace", "rm", "left", "--with-data").stderr
    said("user", "alter", LEFT[0], "--namespace", "right")
    assert root.get(f"/v1/users/{LEFT[0]}").json()["namespace"] == "right"
    assert "there is no namespace" in run("user", "alter", LEFT[0], "--namespace", "nowhere").stderr
    said("user", "alter", LEFT[0], "--namespace", "left")
    assert "removed namespace left" in said("namespace", "rm", "left", "--with-data", "--yes")
    assert "there is no namespace" in run("namespace", "rm", "left").stderr
    deadline = time.monotonic() + 10
    while "left" in said("namespace", "ls"):
        assert time.monotonic() < deadline


def test_no_record_of_the_history_names_what_it_held(broker: Broker, root: httpx.Client, data: Path) -> None:
    """Charts are records of the log, kept for a week: those of others stay, names of the removed tenant go off the disk."""
    app, loop = broker.app, broker.loop
    assert app is not None and loop is not None
    for namespace in ("left", "right"):
        here = {"namespace": namespace}
        for topic in ("plans", "orders"):
            body = {"topic": f"{namespace}-secret/{topic}", "value": "x"}
            root.post("/v1/messages", json=body, params=here).raise_for_status()
        root.post("/v1/queues", json={"name": f"{namespace}-jobs", "filter": "#"}, params=here).raise_for_status()
        root.get("/v1/history", params={"queue": f"{namespace}-jobs", **here}).raise_for_status()
    for _ in range(2):
        asyncio.run_coroutine_threadsafe(app.history.sample(), loop).result(30)
        for namespace in ("left", "right"):
            body = {"topic": f"{namespace}-secret/plans", "value": "x"}
            root.post("/v1/messages", json=body, params={"namespace": namespace}).raise_for_status()
    asyncio.run_coroutine_threadsafe(app.history.sample(), loop).result(30)
    assert {b"left-secret", b"left-jobs", b"right-secret", b"right-jobs"} <= named_in(data / "logs")
    root.delete("/v1/namespaces/left?with_data=true").raise_for_status()
    asyncio.run_coroutine_threadsafe(app.history.sample(), loop).result(30)
    eventually(
        lambda: named_in(data / "logs") == {b"right-secret", b"right-jobs"}, "only the others' points are written again"
    )
    shown = root.get("/v1/history", params={"queue": "right-jobs", "namespace": "right"}).json()
    assert max(shown["series"]["ready"]) >= 2
    root.put("/v1/namespaces/left").raise_for_status()
    again = root.get("/v1/history", params={"queue": "left-jobs", "namespace": "left"}).json()
    assert again["series"] == {}, "who comes after with the same name is told nothing"


def named_in(directory: Path) -> set[bytes]:
    """Words of the test that lie in any file, as they are: these points are not compressed."""
    words = {f"{namespace}-{what}".encode() for namespace in ("left", "right") for what in ("secret", "jobs")}
    found = set[bytes]()
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            found |= {word for word in words if path.is_file() and word in path.read_bytes()}
    return found

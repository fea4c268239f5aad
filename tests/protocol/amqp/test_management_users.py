"""RabbitMQ's users and permissions by its management API, and what clients may do with them."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import httpx
import pika
import pytest

from mainstem.testing.broker import Broker

ROOT = ("root", "pass word")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def api(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{broker.http_url}/api/", auth=ROOT, timeout=20) as client:
        first = {"password": ROOT[1], "tags": "administrator"}
        assert client.put("users/root", json=first, auth=httpx.BasicAuth("guest", "guest")).status_code == 201
        yield client


def connect(broker: Broker, user: str, password: str, vhost: str = "/") -> pika.BlockingConnection:
    login = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port, vhost, login))


def rights(configure: str = ".*", write: str = ".*", read: str = ".*") -> dict[str, str]:
    return {"configure": configure, "write": write, "read": read}


def test_a_user_with_permissions_works_and_without_does_not(broker: Broker, api: httpx.Client) -> None:
    assert api.put("vhosts/shop").status_code == 201
    assert api.put("users/ann", json={"password": "secret", "tags": ""}).status_code == 201
    assert api.get("users/ann").json() == {"name": "ann", "tags": ["management"], "limits": {}}
    assert api.get("permissions/shop/ann").status_code == 404
    assert api.get("users/ann/permissions").json() == []
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connect(broker, "ann", "secret", "shop")
    assert api.put("permissions/shop/ann", json=rights()).status_code == 201
    assert api.put("permissions/shop/ann", json=rights()).status_code == 204
    wanted = {"user": "ann", "vhost": "shop", **rights()}
    assert api.get("permissions/shop/ann").json() == wanted
    assert wanted in api.get("permissions").json()
    channel = connect(broker, "ann", "secret", "shop").channel()
    channel.queue_declare("jobs")
    channel.queue_bind("jobs", "amq.topic", "a.#")
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "a.b", b"x")
    assert channel.basic_get("jobs", auto_ack=True)[2] == b"x"
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connect(broker, "ann", "secret", "/")
    assert api.delete("permissions/shop/ann").status_code == 204
    assert api.get("users/ann/permissions").json() == []
    assert api.delete("users/ann").status_code == 204
    assert api.get("users/ann").status_code == 404


def test_each_right_is_what_it_says(broker: Broker, api: httpx.Client) -> None:
    api.put("users/reader", json={"password": "secret"})
    api.put("permissions/%2F/reader", json=rights(configure="^$", write=""))
    connect(broker, *ROOT).channel().queue_declare("shared", durable=True)
    connection = connect(broker, "reader", "secret")
    assert connection.channel().basic_get("shared") == (None, None, None)
    for refused in (
        lambda channel: channel.queue_declare("own"),
        lambda channel: (channel.confirm_delivery(), channel.basic_publish("", "shared", b"x")),
    ):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
            refused(connection.channel())


def test_a_password_hash_of_rabbitmqs_logs_in(broker: Broker, api: httpx.Client) -> None:
    salt = b"\x90\x8d\xc6\x0a"
    kept = b64encode(salt + hashlib.sha256(salt + b"test12").digest()).decode()
    body = {"password_hash": kept, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": []}
    assert api.put("users/bob", json=body).status_code == 201
    api.put("permissions/%2F/bob", json=rights())
    connect(broker, "bob", "test12").close()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connect(broker, "bob", "test13")


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("users/cas", {}, "needs a password"),
        ("users/cas", {"password_hash": "x"}, "not one of RabbitMQ's"),
        ("users/root", {"password": "x", "tags": ""}, "administrator"),
        ("users/a b", {"password": "x"}, "user name"),
        ("permissions/%2F/root", rights(read="^a-.*"), "'.*' or nothing"),
        ("permissions/nowhere/root", rights(), "nowhere"),
        ("permissions/%2F/nobody", rights(), "nobody"),
        ("users/cas", [], "JSON object"),
    ],
)
def test_what_is_wrong_is_refused_and_says_why(api: httpx.Client, path: str, body: Any, why: str) -> None:
    answer = api.put(path, json=body)
    assert answer.status_code in (400, 404) and why in answer.json()["reason"], answer.text
    assert api.get("users/cas").status_code == 404


def test_only_an_admin_may_ask(broker: Broker, api: httpx.Client) -> None:
    api.put("users/ann", json={"password": "secret"})
    api.put("permissions/%2F/ann", json=rights())
    with httpx.Client(base_url=f"{broker.http_url}/api/", auth=("ann", "secret"), timeout=20) as other:
        for method, path in (
            ("GET", "users"),
            ("PUT", "users/eve"),
            ("PUT", "permissions/%2F/ann"),
            ("DELETE", "users/ann"),
        ):
            assert other.request(method, path, json={"password": "x", **rights()}).status_code == 401, path

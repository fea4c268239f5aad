"""RabbitMQ's management API: the fields its tools read, definitions there and back, rabbitmqadmin itself."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pika
import pytest

from mainstem.testing.broker import Broker
from tests.protocol.amqp.conftest import Connect, declared, eventually

_PLAIN = {"durable": True, "auto_delete": False}
RABBITMQADMIN = Path("/usr/bin/rabbitmqadmin")


@pytest.fixture
def api(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{broker.http_url}/api/", auth=("guest", "guest"), timeout=10) as client:
        yield client


def get(api: httpx.Client, path: str, **query: Any) -> Any:
    answer = api.get(path, params=query or None)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_queue_shows_what_flower_and_keda_read(api: httpx.Client, connect: Connect, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    declared(channel, name, durable=True, arguments={"x-max-length": 100})
    for _ in range(3):
        channel.basic_publish("", name, b"x")
    channel.basic_get(name)
    row = eventually(lambda: get(api, f"queues/%2F/{name}"))
    assert (row["messages"], row["messages_ready"], row["messages_unacknowledged"]) == (3, 2, 1)
    assert (row["consumers"], row["durable"], row["type"], row["arguments"]) == (
        0,
        True,
        "classic",
        {"x-max-length": 100},
    )
    assert row["message_stats"]["publish"] == 3
    assert "rate" in row["message_stats"]["publish_details"]
    assert row["idle_since"]
    assert name in [one["name"] for one in get(api, "queues/%2F")]
    assert api.get("queues/%2F/nowhere").status_code == 404
    page = get(api, "queues/%2F", page=1, page_size=1, name=name, use_regex="true")
    assert (page["item_count"], page["items"][0]["name"], page["filtered_count"]) == (1, name, 1)
    assert get(api, "queues", columns="name,messages", name=name) == [{"name": name, "messages": 3}]


def test_everything_can_be_declared_published_and_got_by_http(api: httpx.Client, name: str) -> None:
    assert api.put(f"queues/%2F/{name}", json={"durable": True}).status_code == 201
    assert api.put(f"queues/%2F/{name}", json={"durable": True}).status_code == 204
    assert api.put(f"exchanges/%2F/{name}", json={"type": "topic"}).status_code == 201
    bound = api.post(f"bindings/%2F/e/{name}/q/{name}", json={"routing_key": "a.#"})
    assert bound.status_code == 201
    message = {
        "properties": {"headers": {"h": 1}, "delivery_mode": 2},
        "routing_key": "a.b",
        "payload": "höi",
        "payload_encoding": "string",
    }
    assert api.post(f"exchanges/%2F/{name}/publish", json=message).json() == {"routed": True}
    unrouted = api.post(f"exchanges/%2F/{name}/publish", json={**message, "routing_key": "z"}).json()
    assert unrouted == {"routed": False}
    for ackmode, left in (("ack_requeue_true", 1), ("ack_requeue_false", 0)):
        got = api.post(f"queues/%2F/{name}/get", json={"count": 5, "ackmode": ackmode, "encoding": "auto"}).json()
        assert [(one["payload"], one["exchange"], one["routing_key"]) for one in got] == [("höi", name, "a.b")]
        assert got[0]["properties"] == {"headers": {"h": 1}, "delivery_mode": 2}
        assert get(api, f"queues/%2F/{name}")["messages_ready"] == left
    rows = get(api, f"queues/%2F/{name}/bindings")
    assert [(row["source"], row["routing_key"]) for row in rows] == [("", name), (name, "a.#")]
    key = quote(rows[1]["properties_key"], safe="")
    assert api.delete(f"bindings/%2F/e/{name}/q/{name}/{key}").status_code == 204
    assert len(get(api, f"queues/%2F/{name}/bindings")) == 1
    api.post("exchanges/%2F/amq.default/publish", json={"routing_key": name, "payload": "x", "properties": {}})
    assert api.delete(f"queues/%2F/{name}/contents").status_code == 204
    assert get(api, f"queues/%2F/{name}")["messages"] == 0
    assert api.delete(f"queues/%2F/{name}").status_code == 204
    assert api.delete(f"exchanges/%2F/{name}").status_code == 204
    assert api.get(f"exchanges/%2F/{name}").status_code == 404


def test_overview_nodes_connections_channels_and_consumers(api: httpx.Client, connect: Connect, name: str) -> None:
    connection = connect(client_properties={"connection_name": name})
    channel = connection.channel()
    channel.basic_qos(prefetch_count=7)
    declared(channel, name)
    channel.basic_consume(name, lambda *_: None, consumer_tag=name)
    overview = get(api, "overview")
    assert overview["rabbitmq_version"]
    assert overview["object_totals"]["queues"] >= 1
    assert get(api, "nodes")[0]["running"] is True
    assert get(api, "whoami")["name"] == "guest"
    assert "/" in [one["name"] for one in get(api, "vhosts")]
    mine = [one for one in get(api, "connections") if one["user_provided_name"] == name]
    assert (mine[0]["vhost"], mine[0]["channels"], mine[0]["protocol"]) == ("/", 1, "AMQP 0-9-1")
    consumer = next(one for one in get(api, "consumers") if one["consumer_tag"] == name)
    assert (consumer["queue"], consumer["prefetch_count"], consumer["ack_required"]) == (
        {"name": name, "vhost": "/"},
        7,
        True,
    )
    assert any(one["consumer_count"] == 1 for one in get(api, "channels"))
    assert {one["name"] for one in get(api, "exchanges/%2F")} >= {"", "amq.topic", "amq.direct", "amq.headers"}
    for path in ("aliveness-test/%2F", "healthchecks/node", "health/checks/alarms", "health/checks/local-alarms"):
        assert get(api, path) == {"status": "ok"}
    assert api.delete("connections/" + quote(mine[0]["name"], safe="")).status_code == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"320.*CONNECTION_FORCED"):
        connection.process_data_events(5)


def test_definitions_go_out_and_rabbitmqs_own_come_in(api: httpx.Client, name: str) -> None:
    definitions = {
        "rabbit_version": "3.12.0",
        "users": [{"name": "guest", "password_hash": "x", "tags": ["administrator"]}],
        "vhosts": [{"name": "/"}, {"name": name}],
        "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "policies": [],
        "queues": [
            {
                "name": name,
                "vhost": "/",
                "durable": True,
                "auto_delete": False,
                "arguments": {"x-queue-type": "quorum"},
            },
            {"name": "inner", "vhost": name, "durable": True, "auto_delete": False, "arguments": {}},
        ],
        "exchanges": [{"name": name, "vhost": "/", "type": "headers", **_PLAIN, "internal": False, "arguments": {}}],
        "bindings": [
            {
                "source": name,
                "vhost": "/",
                "destination": name,
                "destination_type": "queue",
                "routing_key": "",
                "arguments": {"x-match": "any", "a": 1},
            }
        ],
    }
    assert api.post("definitions", json=definitions).status_code == 204
    assert api.post("definitions", json=definitions).status_code == 204
    out = get(api, "definitions")
    for kind in ("queues", "exchanges", "bindings"):
        for wanted in definitions[kind]:
            assert wanted in out[kind]
    inner = get(api, "definitions/" + name)
    assert [one["name"] for one in inner["queues"]] == ["inner"]


def test_a_vhost_made_by_http_is_a_namespace_of_its_own(api: httpx.Client, connect: Connect, name: str) -> None:
    assert api.put(f"vhosts/{name}").status_code == 201, "as curl -X PUT sends it: no body, no content type"
    assert api.put(f"vhosts/{name}", json={}).status_code in (201, 204)
    channel = connect(virtual_host=name).channel()
    declared(channel, "same")
    channel.basic_publish("", "same", b"in " + name.encode())
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        connect().channel().queue_declare("same", passive=True)
    assert channel.basic_get("same", auto_ack=True)[2] == b"in " + name.encode()


@pytest.mark.skipif(not RABBITMQADMIN.exists() or shutil.which("python3") is None, reason="rabbitmqadmin is not here")
def test_rabbitmqadmin_works(broker: Broker, name: str) -> None:
    def run(*arguments: str) -> Any:
        command = ["python3", str(RABBITMQADMIN), "-H", broker.host, "-P", str(broker.http_port), "-f", "raw_json"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError:
            return done.stdout

    run("declare", "queue", f"name={name}", "durable=true")
    run("declare", "exchange", f"name={name}", "type=fanout")
    run("declare", "binding", f"source={name}", f"destination={name}")
    run("publish", f"exchange={name}", "routing_key=", "payload=hello")
    assert name in [row["name"] for row in run("list", "queues", "name", "messages")]
    got = run("get", f"queue={name}", "ackmode=ack_requeue_false")
    assert "hello" in json.dumps(got)
    run("purge", "queue", f"name={name}")
    run("delete", "queue", f"name={name}")
    assert run("show", "overview")

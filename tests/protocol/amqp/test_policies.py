"""RabbitMQ's policies: put by the management API, obeyed by the queues whose names match."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pytest

from mainstem.testing.broker import Broker
from tests.protocol.amqp.conftest import Connect, declared, eventually


@pytest.fixture
def api(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{broker.http_url}/api/", auth=("guest", "guest"), timeout=10) as client:
        yield client
        for row in client.get("policies/%2F").json():
            client.delete(f"policies/%2F/{row['name']}")


def put(api: httpx.Client, name: str, pattern: str, definition: dict[str, object], **more: object) -> httpx.Response:
    return api.put(f"policies/%2F/{name}", json={"pattern": pattern, "definition": definition, **more})


def ready(api: httpx.Client, name: str) -> int:
    return int(api.get(f"queues/%2F/{name}").json()["messages_ready"])


def test_a_policy_limits_queues_that_are_there_and_new_ones(api: httpx.Client, connect: Connect, name: str) -> None:
    channel = connect().channel()
    declared(channel, name, durable=True)
    declared(channel, f"other-{name}", durable=True)
    for queue in (name, f"other-{name}"):
        for number in range(10):
            channel.basic_publish("", queue, b"%d" % number)
    eventually(lambda: ready(api, name) == 10)
    assert put(api, "short", f"^{name}", {"max-length": 3}).status_code == 201
    assert put(api, "short", f"^{name}", {"max-length": 4}).status_code == 204
    assert (ready(api, name), ready(api, f"other-{name}")) == (3, 10)
    row = api.get(f"queues/%2F/{name}").json()
    assert (row["policy"], row["effective_policy_definition"]) == ("short", {"max-length": 4})
    assert row["arguments"] == {}
    declared(channel, f"{name}-new", durable=True)
    for _ in range(10):
        channel.basic_publish("", f"{name}-new", b"x")
    eventually(lambda: ready(api, f"{name}-new") == 4)
    assert api.delete("policies/%2F/short").status_code == 204
    for _ in range(10):
        channel.basic_publish("", name, b"x")
    eventually(lambda: ready(api, name) == 13)
    channel.queue_declare(name, durable=True)  # declared as before: the policy is none of its arguments


def test_numbers_are_the_smaller_ones_and_names_the_queues_own(api: httpx.Client, connect: Connect, name: str) -> None:
    channel = connect().channel()
    own = {"x-max-length": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-own"}
    declared(channel, name, durable=True, arguments=own)
    declared(channel, f"{name}-own", durable=True)
    declared(channel, f"{name}-policy", durable=True)
    put(api, "letters", f"^{name}$", {"max-length": 5, "dead-letter-exchange": "", "dead-letter-routing-key": "x"})
    for _ in range(6):
        channel.basic_publish("", name, b"x")
    eventually(lambda: (ready(api, name), ready(api, f"{name}-own")) == (2, 4))
    assert ready(api, f"{name}-policy") == 0


def test_the_highest_priority_wins_and_kinds_are_kept_apart(api: httpx.Client, connect: Connect, name: str) -> None:
    channel = connect().channel()
    put(api, "low", name, {"max-length": 1}, priority=1)
    put(api, "high", name, {"max-length": 3, "overflow": "reject-publish"}, priority=2)
    put(api, "quorum", name, {"max-length": 2}, **{"priority": 9, "apply-to": "quorum_queues"})
    declared(channel, name, durable=True)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", name, b"x")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", name, b"x")
    assert ready(api, name) == 3
    assert [row["name"] for row in api.get("policies").json()] == ["low", "high", "quorum"]
    assert api.get("policies/%2F/high").json()["priority"] == 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"pattern": "a", "definition": {"max-lenght": 1}}, "max-lenght are not recognised"),
        ({"pattern": "a", "definition": {"max-length": "1"}}, "expected integer"),
        ({"pattern": "a", "definition": {}}, "no definition"),
        ({"pattern": "(", "definition": {"max-length": 1}}, "not understood"),
        ({"definition": {"max-length": 1}}, "no pattern"),
        ({"pattern": "a", "definition": {"max-age": "soon"}}, "max-age"),
        ({"pattern": "a", "definition": {"max-length": 1}, "apply-to": "exchanges"}, "apply to queues"),
        ([], "JSON object"),
    ],
)
def test_a_wrong_policy_is_refused_and_says_why(api: httpx.Client, body: object, why: str) -> None:
    answer = api.put("policies/%2F/wrong", json=body)
    assert answer.status_code == 400 and why in answer.json()["reason"]
    assert api.get("policies/%2F/wrong").status_code == 404


def test_policies_outlive_a_restart_and_travel_in_definitions(tmp_path: Path) -> None:
    guest = ("guest", "guest")
    with Broker(engine="segment", data=tmp_path) as broker, httpx.Client(base_url=broker.http_url, auth=guest) as http:
        assert put(
            httpx.Client(base_url=f"{broker.http_url}/api/", auth=guest), "p", "^q", {"max-length": 1}
        ).is_success
        http.put("/api/queues/%2F/q1", json={"durable": True})
        exported = http.get("/api/definitions/%2F").json()["policies"]
    assert [(row["name"], row["pattern"]) for row in exported] == [("p", "^q")]
    with Broker(engine="segment", data=tmp_path) as broker, httpx.Client(base_url=broker.http_url, auth=guest) as http:
        assert http.get("/api/queues/%2F/q1").json()["policy"] == "p"
        for _ in range(3):
            http.post("/api/exchanges/%2F/amq.default/publish", json={"routing_key": "q1", "payload": "x"})
        assert http.get("/api/queues/%2F/q1").json()["messages_ready"] == 1

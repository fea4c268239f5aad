"""RabbitMQ's management API refuses what AMQP refuses, and says why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mainstem.testing.broker import Broker


@pytest.fixture
def api(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{broker.http_url}/api/", auth=("guest", "guest"), timeout=10) as client:
        yield client


def status(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["reason"] if answer.content else ""


def test_a_queue_is_declared_again_only_as_it_is(api: httpx.Client, name: str) -> None:
    path = f"queues/%2F/{name}"
    assert api.put(path, json={"durable": True, "arguments": {"x-max-length": 10}}).status_code == 201
    assert api.put(path, json={"durable": True, "arguments": {"x-max-length": 10}}).status_code == 204
    again = api.put(path, json={"durable": True, "arguments": {"x-max-length": 11}})
    why = f"inequivalent arg 'x-max-length' for queue '{name}' in vhost '/': received '11' but current is '10'"
    assert status(again) == (400, why)


def test_an_exchange_is_declared_again_only_as_it_is(api: httpx.Client, name: str) -> None:
    path = f"exchanges/%2F/{name}"
    assert api.put(path, json={"type": "topic"}).status_code == 201
    assert api.put(path, json={"type": "topic"}).status_code == 204
    why = f"inequivalent arg 'type' for exchange '{name}' in vhost '/': received 'direct' but current is 'topic'"
    assert status(api.put(path, json={"type": "direct"})) == (400, why)


@pytest.mark.parametrize(
    "arguments",
    [{"x-message-ttl": -1}, {"x-max-length": "ten"}, {"x-overflow": "explode"}, {"x-queue-type": "quantum"}],
)
def test_arguments_that_make_no_sense_are_refused(api: httpx.Client, name: str, arguments: dict[str, Any]) -> None:
    code, why = status(api.put(f"queues/%2F/{name}", json={"arguments": arguments}))
    assert code == 400
    assert why.startswith(f"invalid arg '{next(iter(arguments))}' for queue '{name}' in vhost '/'")
    assert api.get(f"queues/%2F/{name}").status_code == 404


@pytest.mark.parametrize("path", ["queues/%2F/amq.mine", "exchanges/%2F/amq.mine"])
def test_reserved_names_are_refused(api: httpx.Client, path: str) -> None:
    assert api.put(path, json={}).status_code == 401


def test_a_binding_is_found_and_removed_by_its_properties_once(api: httpx.Client, name: str) -> None:
    """A queue and an exchange of the same name have bindings of their own."""
    assert api.put(f"queues/%2F/{name}", json={}).status_code == 201
    assert api.put(f"exchanges/%2F/{name}", json={}).status_code == 201
    for letter in "qe":
        made = api.post(f"bindings/%2F/e/amq.topic/{letter}/{name}", json={"routing_key": "a.#"})
        assert made.status_code == 201
    path = f"bindings/%2F/e/amq.topic/q/{name}/a.%23"
    assert api.get(path).json()["routing_key"] == "a.#"
    assert [api.delete(path).status_code, api.delete(path).status_code] == [204, 404]
    assert api.get(f"bindings/%2F/e/amq.topic/e/{name}/a.%23").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"payload": "!!!", "payload_encoding": "base64"},
        {"payload": "x", "payload_encoding": "rot13"},
        {"payload": "x", "payload_encoding": "string", "properties": {"priority": "high"}},
        {"payload": "x", "payload_encoding": "string", "properties": {"headers": [1]}},
    ],
)
def test_a_message_that_cannot_be_read_is_not_published(api: httpx.Client, name: str, body: dict[str, Any]) -> None:
    assert api.put(f"queues/%2F/{name}", json={}).status_code == 201
    answer = api.post("exchanges/%2F/amq.default/publish", json={"properties": {}, "routing_key": name, **body})
    assert answer.status_code == 400
    assert api.get(f"queues/%2F/{name}").json()["messages"] == 0


@pytest.mark.parametrize("body", [{"ackmode": "maybe"}, {"count": "all"}])
def test_a_get_that_is_not_understood_takes_nothing(api: httpx.Client, name: str, body: dict[str, Any]) -> None:
    assert api.put(f"queues/%2F/{name}", json={}).status_code == 201
    asked = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto", **body}
    assert api.post(f"queues/%2F/{name}/get", json=asked).status_code == 400


def test_lists_are_sorted_and_have_a_last_page(api: httpx.Client, name: str) -> None:
    for end in "bca":
        assert api.put(f"queues/%2F/{name}-{end}", json={}).status_code == 201
    asked = {"name": f"{name}-", "sort": "name", "columns": "name"}
    rows = api.get("queues/%2F", params={**asked, "sort_reverse": "true"}).json()
    assert rows == [{"name": f"{name}-{end}"} for end in "cba"]
    assert api.get("queues/%2F", params={**asked, "page": "3", "page_size": "1"}).json()["items"] == rows[:1]
    assert api.get("queues/%2F", params={**asked, "page": "4", "page_size": "1"}).status_code == 400

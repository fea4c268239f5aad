"""What a rule denies is read by no way around it: views, queues, bindings, copies, scans, whatever protocol asks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from mainstem.protocols.kafka.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from mainstem.testing import Broker
from tests.protocol.kafka.share_member import Member
from tests.protocol.mqtt.raw import Raw, unique
from tests.users import ANN, ROOT, add_users, allow, deny

ALL = ["publish", "consume", "create", "describe"]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    """A broker with an admin, and a user who may do everything with `a/#` and `ann/#`, but not read `a/secret`."""
    with Broker() as broker:
        add_users(broker)
        for topic_filter in ("a/#", "ann/#"):
            allow(broker, topic_filter, *ALL)
        deny(broker, "a/secret", "consume")
        with Raw.connected(broker.mqtt_port, username="root", password=b"secret") as root:
            root.publish("a/secret", b"secret", qos=1)
            root.publish("a/open", b"open", qos=1)
        yield broker


@pytest.fixture
def ann(guarded: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.http_url, auth=ANN, timeout=20) as client:
        yield client


@pytest.fixture
def root(guarded: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.http_url, auth=ROOT, timeout=20) as client:
        yield client


@pytest.fixture
def channel(guarded: Broker) -> Iterator[BlockingChannel]:
    login = pika.PlainCredentials(*ANN)
    where = pika.ConnectionParameters("127.0.0.1", guarded.amqp_port, credentials=login)
    with pika.BlockingConnection(where) as connection:
        yield connection.channel()


def refused(code: int) -> Any:
    return pytest.raises(ChannelClosedByBroker, match=f"^\\({code}")


def test_a_view_is_made_only_of_what_its_maker_may_read(ann: httpx.Client) -> None:
    """For whoever may read the view's name may read all it shows."""
    assert ann.post("/v1/views", json={"name": "ann/all", "filter": "a/#"}).status_code == 403
    assert ann.post("/v1/views", json={"name": "ann/one", "filter": "a/+/x"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/series", "/messages"])
def test_browsing_a_filter_shows_nothing_that_is_denied(ann: httpx.Client, path: str) -> None:
    answer = ann.get(path, params={"filter": "a/#"})
    assert answer.status_code == 403
    assert ann.get(path, params={"filter": "a/open"}).status_code == 200


def test_a_scan_shows_nothing_that_is_denied(guarded: Broker, root: httpx.Client) -> None:
    """`consume #` with something denied is not everything. (What else a scan shows: tests/security/test_scans_...)"""
    root.post("/v1/users", json={"name": "spark", "password": "pass word"}).raise_for_status()
    rules = "/v1/users/spark/rules"
    root.post(rules, json={"allow": True, "actions": ["consume"], "filter": "#"}).raise_for_status()
    with httpx.Client(base_url=guarded.http_url, auth=("spark", "pass word"), timeout=20) as spark:
        select = {"kind": "filter", "filter": "a/#"}

        def slices() -> list[dict[str, Any]]:
            found = spark.post("/v1/scan/lanes", json={"select": select}).raise_for_status().json()["lanes"]
            ranges = [[one["topic"], one["partition"], one["start"], one["end"]] for one in found]
            plan = spark.post("/v1/scan/plan", json={"select": select, "ranges": ranges}).raise_for_status().json()
            return list(plan["slices"])

        before = sum(one["rows"] for one in slices())
        root.post(rules, json={"allow": False, "actions": ["consume"], "filter": "a/secret"}).raise_for_status()
        assert sum(one["rows"] for one in slices()) == before - 1


def test_a_queue_over_a_view_needs_the_right_to_read_the_view(
    root: httpx.Client, ann: httpx.Client, channel: BlockingChannel
) -> None:
    view, queue = unique("theirs"), f"ann.{unique('queue')}"
    root.post("/v1/views", json={"name": view, "filter": "a/#"}).raise_for_status()
    arguments = {"x-view": view, "x-from": "earliest"}
    answer = ann.put(f"/api/queues/%2F/{queue}", json={"durable": True, "arguments": arguments})
    assert answer.status_code in (401, 403)
    with refused(403):
        channel.queue_declare(queue, durable=True, arguments=arguments)


def test_a_queue_over_a_view_may_be_made_by_the_management_api_too(root: httpx.Client, guarded: Broker) -> None:
    view, queue = unique("view"), unique("queue")
    root.post("/v1/views", json={"name": view, "filter": "a/secret"}).raise_for_status()
    arguments = {"x-view": view, "x-from": "earliest"}
    assert root.put(f"/api/queues/%2F/{queue}", json={"durable": True, "arguments": arguments}).status_code == 201
    got = root.post(
        f"/api/queues/%2F/{queue}/get", json={"count": 5, "ackmode": "ack_requeue_false", "encoding": "auto"}
    )
    assert "secret" in [row["payload"] for row in got.json()]


def test_a_binding_by_the_management_api_needs_the_same_rights_as_by_amqp(
    ann: httpx.Client, channel: BlockingChannel
) -> None:
    queue = f"ann.{unique('queue')}"
    channel.queue_declare(queue, durable=True)
    path = f"/api/bindings/%2F/e/amq.topic/q/{queue}"
    for key in ("a.secret", "a.#", "b"):
        assert ann.post(path, json={"routing_key": key}).status_code in (401, 403), key
    assert ann.post(path, json={"routing_key": "a.open"}).status_code == 201


def test_a_queue_made_by_mqtt_is_no_way_around_for_amqp(guarded: Broker, channel: BlockingChannel) -> None:
    queue = f"ann.{unique('queue')}"
    with Raw.connected(guarded.mqtt_port, username="ann", password=b"pass word", version=5) as mqtt:
        assert mqtt.subscribe((f"$queue/{queue}/a/#", 1)) == [0x87]
        assert mqtt.subscribe((f"$queue/{queue}/a/open", 1)) == [1]
    with refused(404):
        channel.basic_get(f"{queue}x")


def test_dead_letters_go_only_where_the_maker_of_the_queue_may_publish(
    ann: httpx.Client, channel: BlockingChannel
) -> None:
    queue = f"ann.{unique('queue')}"
    fine = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "ann.dead"}
    channel.queue_declare(queue, durable=True, arguments=fine)
    elsewhere = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "bob.queue"}
    answer = ann.put(f"/api/queues/%2F/{queue}-2", json={"durable": True, "arguments": elsewhere})
    assert answer.status_code in (401, 403)
    with refused(403):
        channel.queue_declare(f"{queue}-2", durable=True, arguments=elsewhere)


def test_copies_go_only_where_their_publisher_may_publish(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    fine = pika.BasicProperties(headers={"CC": ["ann.other"]})
    channel.basic_publish("", "ann.queue", b"x", fine)
    with refused(403):
        channel.basic_publish("", "ann.queue", b"x", pika.BasicProperties(headers={"CC": ["bob.queue"]}))


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_copies_by_the_management_api_go_only_where_their_publisher_may_publish(
    ann: httpx.Client, channel: BlockingChannel, header: str
) -> None:
    queue = f"ann.{unique('queue')}"
    channel.queue_declare(queue, exclusive=True)
    message = {"routing_key": "ann.nobody", "payload": "x", "payload_encoding": "string"}
    fine = message | {"properties": {"headers": {header: [queue]}}}
    assert ann.post("/api/exchanges/%2F/amq.default/publish", json=fine).json() == {"routed": True}
    _, properties, _ = channel.basic_get(queue, auto_ack=True)
    assert properties.headers == ({"CC": [queue]} if header == "CC" else {})
    elsewhere = message | {"properties": {"headers": {header: ["bob.queue"]}}}
    assert ann.post("/api/exchanges/%2F/amq.default/publish", json=elsewhere).status_code in (401, 403)


def test_a_consumer_whose_right_is_taken_away_is_cancelled(guarded: Broker, channel: BlockingChannel) -> None:
    denied, kept = f"ann.{unique('queue')}", f"ann.{unique('queue')}"
    got: list[bytes] = []
    ended: list[str] = []
    channel.add_on_cancel_callback(lambda frame: ended.append(frame.method.consumer_tag))
    for queue in (denied, kept):
        channel.queue_declare(queue, exclusive=True)
        channel.basic_consume(queue, lambda *delivery: got.append(delivery[3]), auto_ack=True, consumer_tag=queue)
    deny(guarded, denied.replace(".", "/"), "consume")
    deadline = time.monotonic() + 10
    while not ended and time.monotonic() < deadline:
        channel.connection.process_data_events(0.05)
    assert ended == [denied]
    for queue in (denied, kept):
        channel.basic_publish("", queue, queue.encode())
    while not got and time.monotonic() < deadline:
        channel.connection.process_data_events(0.05)
    assert got == [kept.encode()]


class AnnsMember(Member):
    """A share member that logs in first."""

    _logged_in = False

    def ask(self, name: str, version: int, value: Any) -> Any:
        if not self._logged_in:
            self._logged_in = True
            super().ask("SaslHandshake", 1, SaslHandshakeRequest(mechanism="PLAIN"))
            login = b"\0ann\0pass word"
            super().ask("SaslAuthenticate", 2, SaslAuthenticateRequest(auth_bytes=login))
        return super().ask(name, version, value)


def test_a_share_session_ends_to_give_what_is_denied_meanwhile(guarded: Broker, root: httpx.Client) -> None:
    topic = f"ann.{unique('topic')}"
    canonical = topic.replace(".", "/")
    with Raw.connected(guarded.mqtt_port, username="root", password=b"secret") as mqtt:
        mqtt.publish(canonical, b"first", qos=1)
        with AnnsMember(guarded, unique("group"), topic) as member:
            mqtt.publish(canonical, b"second", qos=1)
            assert member.take()
            deny(guarded, canonical, "consume")
            mqtt.publish(canonical, b"third", qos=1)
            assert member.take(wait_ms=300) == []

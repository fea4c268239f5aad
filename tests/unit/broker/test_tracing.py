"""The way of one message: sampled by policy, followed through the broker, bounded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as paho
import pika
import pytest
from confluent_kafka import Consumer
from paho.mqtt.enums import CallbackAPIVersion

from mainstem.broker.topics.policy import Policy
from mainstem.broker.tracing import tracer
from mainstem.broker.tracing.tracer import EVERYTHING, OPEN_MAX, threshold_of
from mainstem.broker.tracing.traces import TRACES_MAX, Trace, Traces, trace_ids
from mainstem.model.errors import InvalidArgument
from mainstem.testing import Broker
from mainstem.testing.process import BrokerProcess

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def broker() -> Any:
    with Broker("policies.traced/#.trace=100%") as broker:
        yield broker


def traces(broker: Any, **asked: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{broker.http_url}/v1/traces", params=asked)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


def ended(broker: Any, **asked: str) -> dict[str, Any]:
    deadline = time.monotonic() + 45
    while not (found := traces(broker, **asked)) or found[0]["open"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found[0]


def steps(trace: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one["what"], one["kind"], one["who"]) for one in trace["steps"]]


def client(broker: Broker, name: str) -> paho.Client:
    made = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
    made.connect(broker.host, broker.mqtt_port)
    made.loop_start()
    return made


def subscribed(one: paho.Client, topic_filter: str, qos: int) -> None:
    done: list[int] = []
    one.on_subscribe = lambda *_: done.append(1)
    one.subscribe(topic_filter, qos)
    deadline = time.monotonic() + 30
    while not done:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_message_is_followed_from_its_publisher_to_everyone_who_got_and_acked_it(broker: Broker) -> None:
    httpx.post(f"{broker.http_url}/v1/queues", json={"name": "jobs", "filter": "traced/#"}).raise_for_status()
    listener, publisher = client(broker, "listener"), client(broker, "publisher")
    try:
        subscribed(listener, "traced/a", 1)
        properties = paho.Properties(paho.PacketTypes.PUBLISH)
        properties.UserProperty = [("traceparent", PARENT)]
        publisher.publish("traced/a", b"hello", qos=1, properties=properties).wait_for_publish(30)
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
            channel = connection.channel()
            deadline = time.monotonic() + 30
            while (got := channel.basic_get("jobs"))[0] is None:
                assert time.monotonic() < deadline
            channel.basic_ack(got[0].delivery_tag)
        trace = ended(broker, trace_id=PARENT)
    finally:
        for one in (listener, publisher):
            one.loop_stop()
            one.disconnect()
    assert (trace["topic"], trace["protocol"], trace["client"], trace["size"]) == ("traced/a", "mqtt", "publisher", 5)
    assert trace["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    told = steps(trace)
    assert told[0][:2] == ("stored", "log")
    for wanted in (
        ("durable", "log"),
        ("delivered", "subscription", "listener"),
        ("acked", "subscription", "listener"),
        ("taken", "queue", "jobs"),
        ("acked", "queue", "jobs"),
    ):
        assert any(one[: len(wanted)] == wanted for one in told), (wanted, told)
    assert all(one["after_us"] >= 0 for one in trace["steps"])


def test_acks_are_seen_in_the_turn_that_read_them(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks from time to time: only the turn that reads an ack can tell."""
    monkeypatch.setattr(tracer, "LOOK_S", 3_600.0)
    httpx.post(f"{broker.http_url}/v1/queues", json={"name": "turns", "filter": "traced/#"}).raise_for_status()
    listener, publisher = client(broker, "hears"), client(broker, "says")
    try:
        subscribed(listener, "traced/turn", 1)
        publisher.publish("traced/turn", b"hello", qos=1).wait_for_publish(30)
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
            channel = connection.channel()
            deadline = time.monotonic() + 30
            while (got := channel.basic_get("turns"))[0] is None:
                assert time.monotonic() < deadline
            channel.basic_ack(got[0].delivery_tag)
        trace = ended(broker, topic="traced/turn")
    finally:
        for one in (listener, publisher):
            one.loop_stop()
            one.disconnect()
    acked = [one for one in trace["steps"] if one["what"] == "acked"]
    assert {one["who"] for one in acked} == {"hears", "turns"}
    assert all(one["within_us"] <= one["after_us"] for one in acked)


def test_the_ways_of_messages_outlive_a_stop_and_a_kill(tmp_path: Path) -> None:
    policy = "policies.traced/#.trace=100%"
    with BrokerProcess(tmp_path / "data", policy) as first:
        publish(first, "traced/first")
        before = ended(first, topic="traced/first")
    with BrokerProcess(tmp_path / "data", policy) as second:
        publish(second, "traced/second")
        ended(second, topic="traced/second")
        assert restored(second, "traced/first") == before
        second.kill()
    with BrokerProcess(tmp_path / "data", policy) as third:
        assert restored(third, "traced/first") == before
        assert restored(third, "traced/second")["steps"]
        publish(third, "traced/third")
        ended(third, topic="traced/third")
        assert [one["topic"] for one in traces(third)] == ["traced/third", "traced/second", "traced/first"]
        assert "$traces" not in httpx.get(f"{third.http_url}/v1/topics").text


def publish(broker: Any, topic: str) -> None:
    httpx.post(f"{broker.http_url}/v1/messages", json={"topic": topic, "value": "x"}).raise_for_status()


def restored(broker: Any, topic: str) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while not (found := traces(broker, topic=topic)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found[0]


def test_topics_without_the_policy_are_not_followed_and_one_may_be_switched_on(broker: Broker) -> None:
    http = httpx.Client(base_url=broker.http_url)
    for topic in ("plain", "traced/x"):
        http.post("/v1/messages", json={"topic": topic, "value": "v"}).raise_for_status()
    assert ended(broker)["topic"] == "traced/x"
    http.post("/v1/topics", json={"name": "plain/one", "settings": {"trace": "100%"}}).raise_for_status()
    http.post("/v1/messages", json={"topic": "plain/one", "value": "v", "key": "k-1"}).raise_for_status()
    assert ended(broker, topic="plain/one")["key"] == "k-1"
    assert len(traces(broker, key="k-1")) == 1
    http.patch("/v1/topics/plain/one", json={"settings": {"trace": ""}}).raise_for_status()
    http.post("/v1/messages", json={"topic": "plain/one", "value": "v"}).raise_for_status()
    http.post("/v1/messages", json={"topic": "traced/y", "value": "v"}).raise_for_status()
    assert ended(broker, topic="traced/y")
    assert len(traces(broker, topic="plain/one")) == 1


def test_a_group_that_commits_is_a_step(broker: Broker) -> None:
    http = httpx.Client(base_url=broker.http_url)
    http.post("/v1/messages", json={"topic": "traced/k", "value": "first"}).raise_for_status()
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe(["traced.k"])
    deadline = time.monotonic() + 60
    while (message := consumer.poll(1)) is None:
        assert time.monotonic() < deadline
    consumer.commit(message=message, asynchronous=False)
    http.post("/v1/messages", json={"topic": "traced/k", "value": "second"}).raise_for_status()
    while (message := consumer.poll(1)) is None:
        assert time.monotonic() < deadline
    consumer.commit(message=message, asynchronous=False)
    trace = ended(broker, topic="traced/k")
    assert ("committed", "group", "g") in steps(trace)
    consumer.close()
    way = http.get("/v1/trace", params={"topic": "traced/k", "offset": trace["offset"]}).json()
    assert ("group", "g", "committed") in [(one["kind"], one["name"], one["state"]) for one in way["stations"]]


def test_a_flood_is_followed_only_in_part(broker: Broker) -> None:
    publisher = client(broker, "flood")
    for number in range(2_000):
        last = publisher.publish("traced/flood", str(number), qos=1)
    last.wait_for_publish(60)
    publisher.loop_stop()
    publisher.disconnect()
    assert broker.app is not None
    tracer = broker.app.broker.tracer
    assert tracer.skipped > 0
    assert len(tracer.traces) <= 2_000 - tracer.skipped
    assert len(tracer._open) <= OPEN_MAX


def test_where_a_message_stands_is_known_without_following_it(broker: Broker) -> None:
    http = httpx.Client(base_url=broker.http_url)
    http.post("/v1/queues", json={"name": "plainly", "filter": "plain/#", "deliveries_max": 2}).raise_for_status()
    http.post("/v1/views", json={"name": "shown", "filter": "plain/#"}).raise_for_status()
    http.post("/v1/messages", json={"topic": "plain/a", "value": "v"}).raise_for_status()

    def state() -> tuple[str, int]:
        way = http.get("/v1/trace", params={"topic": "plain/a", "offset": offset}).json()
        found = {one["kind"]: one for one in way["stations"]}
        assert found["view"]["name"] == "shown"
        return found["queue"]["state"], found["queue"]["attempts"]

    offset = http.get("/v1/messages", params={"topic": "plain/a", "from": "-1"}).json()["items"][0]["offset"]
    assert state() == ("waiting", 0)
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        method, _, _ = channel.basic_get("plainly")
        assert state() == ("taken", 0)
        channel.basic_nack(method.delivery_tag, requeue=True)
        channel.queue_declare("plainly", passive=True)
        assert state() == ("released", 1)
        method, _, _ = channel.basic_get("plainly")
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.queue_declare("plainly", passive=True)
        assert state()[0] == "dead"
    way = http.get("/v1/trace", params={"topic": "plain/a", "offset": offset}).json()
    assert way["message"]["value"] == "v"
    assert way["place"]["log"] >= 1
    assert http.get("/v1/trace", params={"topic": "plain/a", "offset": 10**9}).status_code == 404


def test_only_those_who_may_consume_see_the_way_of_a_message() -> None:
    with Broker("policies.traced/#.trace=100%") as broker:
        root = ("root", "secret-1")
        for name, admin in (("root", True), ("ada", False)):
            body = {"name": name, "password": "secret-1", "admin": admin}
            httpx.post(f"{broker.http_url}/v1/users", json=body, auth=root).raise_for_status()
        rule = {"allow": True, "actions": ["consume"], "filter": "traced/open"}
        httpx.post(f"{broker.http_url}/v1/users/ada/rules", json=rule, auth=root).raise_for_status()
        for topic in ("traced/open", "traced/shut"):
            body = {"topic": topic, "value": "v"}
            httpx.post(f"{broker.http_url}/v1/messages", json=body, auth=root).raise_for_status()
        found = httpx.get(f"{broker.http_url}/v1/traces", auth=("ada", "secret-1")).json()["items"]
        assert {one["topic"] for one in found} == {"traced/open"}
        denied = httpx.get(f"{broker.http_url}/v1/trace?topic=traced/shut&offset=0", auth=("ada", "secret-1"))
        assert denied.status_code == 403


def test_a_share_is_a_percentage() -> None:
    assert threshold_of("100%") == EVERYTHING
    assert threshold_of("") == 0
    assert 0 < threshold_of("0.5%") < EVERYTHING // 100
    for wrong in ("1", "101%", "-1%", "all", "1 %"):
        with pytest.raises(InvalidArgument):
            Policy(trace=wrong)


def test_a_trace_id_is_the_publishers_or_the_stamps() -> None:
    assert trace_ids(PARENT.encode(), 5) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    for nothing in (None, b"", b"00-" + b"0" * 32 + b"-" + b"1" * 16 + b"-01", b"garbage"):
        assert trace_ids(nothing, 5) == (f"{5:032x}", "")


def test_traces_are_kept_up_to_a_number() -> None:
    kept = Traces()
    for stamp in range(TRACES_MAX + 10):
        kept.add(Trace(stamp, "/", "a", 1, stamp, "mqtt", trace_id=f"{stamp:032x}"))
    assert len(kept) == TRACES_MAX
    assert kept.get(5) is None
    assert next(kept.find("/")).stamp == TRACES_MAX + 9

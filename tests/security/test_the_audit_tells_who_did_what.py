"""`$audit`: who did what, from where, allowed or not; for the eyes of admins, in every protocol, and without secrets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pika.exceptions
import pytest
from confluent_kafka import Consumer, TopicPartition

from mainstem.broker.rights.refusals import NAMES_MAX, OTHER_NAMES
from mainstem.protocols.kafka import messages as wire
from mainstem.testing import Broker
from tests.protocol.mqtt.raw import Raw, publish_packet
from tests.security.attempts import ATTEMPTS, Client
from tests.security.knocking import KNOCKS, amqp, http, mqtt, nats_
from tests.users import ANN, ROOT, add_users, allow

WAIT_S = 20
AUDIT = "$audit"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    file = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    with Broker(f"audit.file={file}") as broker:
        broker.audit_file = file  # type: ignore[attr-defined]
        add_users(broker)
        allow(broker, "#", "publish", "consume", "create", "configure", "describe")
        with root(broker) as api:
            for name in ("t1", "t2"):
                api.post("/v1/namespaces", json={"name": name}).raise_for_status()
            body = {"name": "tim", "password": "tims password", "namespace": "t1"}
            api.post("/v1/users", json=body).raise_for_status()
        yield broker


def root(broker: Broker, **query: str) -> httpx.Client:
    return httpx.Client(base_url=broker.http_url, auth=ROOT, params=query, timeout=WAIT_S)


def events(broker: Broker, namespace: str = "/") -> list[dict[str, Any]]:
    with root(broker, namespace=namespace) as api:
        answer = api.get("/v1/messages", params={"topic": AUDIT, "limit": 500})
    return [json.loads(row["value"]) for row in answer.json().get("items", ())]


def wait_for(broker: Broker, namespace: str = "/", **wanted: str) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for event in events(broker, namespace):
            if all(value in event.get(key, "") for key, value in wanted.items()):
                return event
        time.sleep(0.05)
    raise AssertionError(f"{wanted} is not among {events(broker, namespace)}")


@pytest.mark.parametrize("protocol", KNOCKS)
def test_a_failed_login_is_told_with_the_protocol_and_without_the_password(broker: Broker, protocol: str) -> None:
    name, password = f"guess-{protocol}", "pass-that-was-tried"
    assert not KNOCKS[protocol](broker, "a/1", name, password)
    event = wait_for(broker, user=name)
    assert (event["action"], event["outcome"], event["protocol"]) == ("login", "refused", protocol)
    assert event["address"] == "127.0.0.1"
    assert password not in json.dumps(events(broker))


def test_a_failed_login_of_a_known_user_concerns_its_namespace(broker: Broker) -> None:
    assert not mqtt(broker, "a/1", "tim", "wrong")
    assert wait_for(broker, "t1", user="tim", action="login")["outcome"] == "refused"
    assert not [one for one in events(broker, "t2") if one["user"] == "tim"]


def test_changes_by_http_and_by_rabbitmqs_api_are_told_done_or_refused(broker: Broker) -> None:
    with root(broker) as api:
        api.post("/v1/users", json={"name": "new", "password": "top secret"}).raise_for_status()
        rule = {"actions": ["publish"], "filter": "x/#"}
        api.post("/v1/users/new/rules", json=rule).raise_for_status()
        api.delete("/v1/users/new").raise_for_status()
        api.delete("/v1/topics/none")
        api.put("/api/queues/%2F/made", json={}).raise_for_status()
    assert wait_for(broker, action="user.add", object="new")["user"] == "root"
    assert "x/#" in wait_for(broker, action="rule.add")["object"]
    assert wait_for(broker, action="user.remove", object="/v1/users/new")["outcome"] == "done"
    assert wait_for(broker, action="topic.delete", object="none")["outcome"] == "failed"
    assert wait_for(broker, action="api PUT", object="made")["outcome"] == "done"
    with httpx.Client(base_url=broker.http_url, auth=ANN) as mine:
        assert mine.delete("/v1/users/root").status_code == 403
    assert wait_for(broker, user="ann", action="user.remove")["outcome"] == "refused"
    text = json.dumps(events(broker))
    assert "top secret" not in text and ROOT[1] not in text and ANN[1] not in text


def test_changes_by_kafka_amqp_and_nats_are_told(broker: Broker) -> None:
    with root(broker) as api:
        for name in ("gone", "kept"):
            api.post("/v1/topics", json={"name": name, "settings": {"layout": "dedicated"}})
    delete = wire.DeleteTopicsRequest(topic_names=["gone"], timeout_ms=5_000)
    with Client(broker, ROOT) as client:
        assert client.ask("DeleteTopics", 5, delete).responses[0].error_code == 0
    assert wait_for(broker, action="DeleteTopics", object="gone")["outcome"] == "done"
    with Client(broker, ANN) as client:
        refused = wire.DeleteTopicsRequest(topic_names=["kept"], timeout_ms=5_000)
        assert client.ask("DeleteTopics", 5, refused).responses[0].error_code == 29
    event = wait_for(broker, action="DeleteTopics", user="ann")
    assert (event["outcome"], event["protocol"], event["object"]) == ("refused", "kafka", "kept")
    where = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, credentials=pika.PlainCredentials(*ROOT))
    with pika.BlockingConnection(where) as connection:
        channel = connection.channel()
        channel.queue_declare("jobs")
        channel.queue_purge("jobs")
        channel.queue_delete("jobs")
    assert wait_for(broker, action="queue.purge", object="jobs")["protocol"] == "amqp"
    assert wait_for(broker, action="queue.delete", object="jobs")["outcome"] == "done"


@pytest.mark.parametrize("protocol", ["mqtt", "kafka", "amqp", "nats"])
@pytest.mark.parametrize("action", ["publish", "consume"])
def test_a_refused_publish_or_read_is_told(broker: Broker, protocol: str, action: str) -> None:
    """Tim has no rule at all; what he tries concerns his own namespace."""
    name = f"secret-{protocol}"
    with root(broker, namespace="t1") as api:
        api.post("/v1/topics", json={"name": name, "settings": {"layout": "dedicated"}})
    assert not ATTEMPTS[f"topic.{action}", protocol](broker, ("tim", "tims password"), name)
    event = wait_for(broker, "t1", user="tim", protocol=protocol, object=name, action=action, outcome="refused")
    assert event["address"] == "127.0.0.1"
    assert not [one for one in events(broker, "t2") if one.get("object") == name]


def test_a_refused_publish_or_read_by_http_is_told(broker: Broker) -> None:
    with httpx.Client(base_url=broker.http_url, auth=("tim", "tims password")) as api:
        assert api.post("/v1/messages", json={"topic": "secret-http", "value": "x"}).status_code == 403
        assert api.get("/v1/messages", params={"topic": "secret-http"}).status_code == 403
    wait_for(broker, "t1", user="tim", protocol="http", why="secret-http", action="topic.publish", outcome="refused")
    wait_for(broker, "t1", user="tim", protocol="http", object="secret-http", action="consume", outcome="refused")


def test_a_flood_of_refused_publishes_is_a_few_events_that_count_it(broker: Broker) -> None:
    flood = b"".join(publish_packet(f"flood/{n % 30}", b"x", version=5) for n in range(3_000))
    with Raw.connected(broker.mqtt_port, version=5, username="tim", password=b"tims password") as client:
        for _ in range(10):
            client.send(flood)
        client.ping()
    deadline, found = time.monotonic() + WAIT_S, []
    while time.monotonic() < deadline and sum(one.get("times", 1) for one in found) < 30_000:
        found = [one for one in events(broker, "t1") if one.get("object", "").startswith(("flood/", OTHER_NAMES))]
        time.sleep(0.05)
    assert sum(one.get("times", 1) for one in found) == 30_000
    assert {"flood/0", "flood/9", OTHER_NAMES} <= {one["object"] for one in found}
    seconds = len({one["time"] for one in found})
    assert len(found) <= (NAMES_MAX + 1) * seconds


def test_only_admins_read_it_by_any_protocol(broker: Broker) -> None:
    """Ann may consume everything there is, and this is not among it."""
    wait_for(broker, user="")
    for user, allowed in ((ANN, False), (ROOT, True)):
        with Raw.connected(broker.mqtt_port, version=5, username=user[0], password=user[1].encode()) as client:
            assert (client.subscribe((AUDIT, 1))[0] < 0x80) is allowed
            assert (client.subscribe(("$stream/" + AUDIT, 1))[0] < 0x80) is allowed
        with httpx.Client(base_url=broker.http_url, auth=user) as api:
            assert (api.get("/v1/messages", params={"topic": AUDIT}).status_code == 200) is allowed
            assert (api.get("/v1/messages", params={"filter": AUDIT}).status_code == 200) is allowed
        with Client(broker, user) as raw:
            code = raw.fetch("_x24audit", 0).responses[0].partitions[0].error_code
            assert (code == 0) is allowed
        where = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, credentials=pika.PlainCredentials(*user))
        with pika.BlockingConnection(where) as connection:
            channel = connection.channel()
            if allowed:
                channel.queue_declare("watching", exclusive=True)
                channel.queue_bind("watching", "amq.topic", AUDIT)
            else:
                with pytest.raises(pika.exceptions.ChannelClosedByBroker):
                    bind(channel)


def bind(channel: Any) -> None:
    channel.queue_declare("mine", exclusive=True)
    channel.queue_bind("mine", "amq.topic", AUDIT)


def test_frames_of_it_are_no_part_of_a_scan(broker: Broker) -> None:
    wait_for(broker, user="")
    assert broker.app is not None
    log = broker.app.broker.namespaces["/"].topics[AUDIT.encode()].partitions[0].log.id
    for user, status in ((ANN, 403), (ROOT, 200)):
        with httpx.Client(base_url=broker.http_url, auth=user) as api:
            answer = api.get("/v1/scan/frames", params={"log": log, "start": 0, "end": 1})
            assert answer.status_code == status


def test_an_admin_of_kafka_reads_it_like_any_topic(broker: Broker) -> None:
    wait_for(broker, user="")
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": ROOT[0],
        "sasl.password": ROOT[1],
        "group.id": "auditors",
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("_x24audit", 0, 0)])
    record = consumer.poll(WAIT_S)
    consumer.close()
    assert record is not None and record.error() is None
    assert json.loads(record.value())["time"]


def test_nobody_writes_into_it(broker: Broker) -> None:
    before = [one["time"] for one in events(broker)]
    for knock in (mqtt, amqp, nats_, http):
        try:
            assert not knock(broker, AUDIT, *ROOT) or knock is nats_  # there `$` is live only: nothing is stored
        except AssertionError:
            assert knock is http  # 400: it is the broker's own
    assert [one for one in events(broker) if "time" not in one] == []
    assert [one["time"] for one in events(broker)][: len(before)] == before


def test_the_file_has_the_same_lines(broker: Broker) -> None:
    wait_for(broker, user="")
    file: Path = broker.audit_file  # type: ignore[attr-defined]
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and not file.exists():
        time.sleep(0.05)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines and all("action" in line for line in lines)


def test_a_namespace_is_empty_with_its_audit(broker: Broker) -> None:
    with root(broker) as api:
        api.post("/v1/namespaces", json={"name": "brief"}).raise_for_status()
        api.post("/v1/views", params={"namespace": "brief"}, json={"name": "x", "filter": "#"}).raise_for_status()
        api.delete("/v1/views/x", params={"namespace": "brief"}).raise_for_status()
        wait_for(broker, "brief", action="view.delete")
        answer = api.delete("/v1/namespaces/brief")
        assert answer.status_code == 200, answer.text

"""A user who may do everything in one namespace reads, changes and learns nothing of another, by any endpoint."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pika
import pytest

from mainstem.testing import Broker
from tests.crossing.commands import eventually
from tests.protocol.mqtt.raw import Raw
from tests.users import ROOT

EVE, BOB = ("eve", "pass word"), ("bob", "pass word")  # of t2, and of the default namespace
ACTIONS = ["publish", "consume", "create", "configure", "delete", "describe"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(engine="segment") as one, httpx.Client(base_url=one.http_url, timeout=20) as http:
        assert http.post("/v1/users", json={"name": ROOT[0], "password": ROOT[1], "admin": True}).status_code == 200
        http.auth = httpx.BasicAuth(*ROOT)
        http.post("/v1/namespaces", json={"name": "t2"}).raise_for_status()
        for name, namespace in ((EVE[0], "t2"), (BOB[0], "/")):
            user = {"name": name, "password": "pass word", "namespace": namespace}
            http.post("/v1/users", json=user).raise_for_status()
            for kind, what in (("topic", "#"), ("queue", "*"), ("exchange", "*"), ("group", "*"), ("namespace", "*")):
                actions = ["manage"] if kind == "namespace" else ACTIONS
                rule = {"actions": actions, "filter": what, "kind": kind}
                http.post(f"/v1/users/{name}/rules", json=rule).raise_for_status()
        http.post("/v1/messages", json={"topic": "secret/plan", "value": "of bob"}).raise_for_status()
        http.post("/v1/archives/cold", json={"ends": {"secret.plan": {"0": 1}}}).raise_for_status()
        http.post("/v1/pipelines/job", json={"flows": [{"flow": "f", "state": "running"}]}).raise_for_status()
        yield one


@pytest.fixture
def eve(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, auth=EVE, timeout=20) as client:
        yield client


@pytest.fixture
def bob(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, auth=BOB, timeout=20) as client:
        yield client


def test_frames_are_those_of_the_callers_own_logs(eve: httpx.Client, bob: httpx.Client) -> None:
    frames = {"log": 1, "start": 0, "end": 100}
    assert b"of bob" in bob.get("/v1/scan/frames", params=frames).content
    assert eve.get("/v1/scan/frames", params=frames).status_code == 404
    assert eve.get("/v1/scan/frames", params={**frames, "namespace": "/"}).status_code == 403


def test_frames_hold_nothing_of_the_brokers_state(broker: Broker, bob: httpx.Client, eve: httpx.Client) -> None:
    """The journal of all namespaces lies between the records of one log."""
    with Raw.connected(broker.mqtt_port, "eves-session", clean=False, username=EVE[0], password=b"pass word") as client:
        client.subscribe(("eves/own/filter", 1))
    content = bob.get("/v1/scan/frames", params={"log": 1, "start": 0, "end": 1000}).content
    assert b"of bob" in content and b"eves-session" not in content and b"eves/own" not in content


def test_archives_and_pipelines_are_those_of_the_namespace(eve: httpx.Client, bob: httpx.Client) -> None:
    assert eve.get("/v1/archives").json() == {"items": []}
    assert eve.delete("/v1/archives/cold").status_code == 404
    assert eve.get("/v1/pipelines").json() == {"items": []}
    assert eve.post("/v1/pipelines/job", json={"flows": [{"flow": "f", "state": "failed"}]}).status_code == 200
    assert eve.post("/v1/archives/cold", json={"ends": {"#": {"1": 100}}, "filter": "#"}).status_code == 200
    assert [one["name"] for one in bob.get("/v1/archives").json()["items"]] == ["cold"]
    assert bob.get("/v1/pipelines").json()["items"][0]["flows"][0]["state"] == "running"
    assert eve.get("/v1/archives").json()["items"][0]["positions"] == []  # another's log is not theirs to report
    assert eve.delete("/v1/archives/cold").status_code == 204
    assert [one["name"] for one in bob.get("/v1/archives").json()["items"]] == ["cold"]


def test_connections_and_consumers_are_those_of_the_namespace(broker: Broker, eve: httpx.Client) -> None:
    login = pika.PlainCredentials(*BOB)
    where = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, credentials=login)
    with (
        pika.BlockingConnection(where) as connection,
        Raw.connected(broker.mqtt_port, username=EVE[0], password=b"pass word"),
    ):
        channel = connection.channel()
        channel.queue_declare("bobs")
        channel.basic_consume("bobs", lambda *_: None)
        assert {one["user"] for one in eve.get("/v1/connections").json()["items"]} == {"eve"}
        with httpx.Client(base_url=broker.http_url, auth=ROOT) as root:
            rows = {one["user"]: one for one in root.get("/v1/connections").json()["items"]}
        assert eve.get(f"/v1/connections/{rows['bob']['id']}").status_code == 404
        assert eve.delete(f"/v1/connections/{rows['bob']['id']}").status_code == 404
        for path in ("connections", "channels", "consumers", "queues", "bindings"):
            assert "bob" not in eve.get(f"/api/{path}").text
        assert eve.get("/api/consumers/%2F").status_code == 401
        assert eve.get("/api/queues/%2F/bobs").status_code == 401
        channel.queue_declare("bobs", passive=True)


@pytest.mark.parametrize("path", ["/api/users", "/api/permissions", "/v1/users", "/v1/config", "/v1/logs", "/v1/rates"])
def test_what_concerns_the_broker_is_for_admins(eve: httpx.Client, path: str) -> None:
    answer = eve.get(path)
    assert answer.status_code in (401, 403) and "bob" not in answer.text


def test_metrics_of_single_objects_need_an_admin(broker: Broker, eve: httpx.Client) -> None:
    assert httpx.get(f"{broker.http_url}/metrics").status_code == 200
    for path in ("/metrics/per-object", "/metrics/detailed?family=mainstem_cursor_lag"):
        assert httpx.get(f"{broker.http_url}{path}").status_code == 401
        assert eve.get(path).status_code == 403
        assert httpx.get(f"{broker.http_url}{path}", auth=ROOT).status_code in (200, 404)


def test_the_overview_tells_a_tenant_of_itself(eve: httpx.Client) -> None:
    facts = eve.get("/v1/overview").json()
    assert (facts["topics"], facts["notices"], facts["rates"]) == (0, [], {})
    assert eve.get("/").status_code == 200
    assert "secret" not in eve.get("/v1/topics").text


def test_another_sites_page_cannot_make_the_broker_write(broker: Broker) -> None:
    url = f"{broker.http_url}/api/aliveness-test/%2F"
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}):
        assert httpx.get(url, auth=ROOT, headers=headers).status_code == 403
    assert httpx.get(url, auth=EVE).status_code == 401
    assert httpx.get(url, auth=ROOT).json() == {"status": "ok"}


def test_failed_logins_and_changes_by_rabbits_api_are_audited(
    broker: Broker, eve: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="mainstem.audit"):
        httpx.get(f"{broker.http_url}/v1/topics", auth=("mallory\nroot", "guess"))
        eve.put("/api/queues/t2/made", json={})
        eve.put("/api/queues/%2F/made", json={})
    said = [record.getMessage() for record in caplog.records]
    assert any("'mallory\\nroot'" in line and "failed" in line for line in said)
    assert any(line.startswith("'eve'") and "/api/queues/t2/made" in line and "done" in line for line in said)
    assert any(line.startswith("'eve'") and "refused: MS-" in line for line in said)
    assert "guess" not in "".join(said)


def test_a_shared_subscription_ends_with_its_last_member_in_its_namespace(
    broker: Broker, eve: httpx.Client, bob: httpx.Client
) -> None:
    """A group of the same name in another namespace is another group: its members keep nothing of ours."""

    def shared(client: httpx.Client) -> list[str]:
        return [one["name"] for one in client.get("/v1/queues").json()["items"] if one["name"].startswith("$share/")]

    with Raw.connected(broker.mqtt_port, "member", username=EVE[0], password=b"pass word") as theirs:
        theirs.subscribe(("$share/workers/jobs/#", 1))
        with Raw.connected(broker.mqtt_port, "member", username=BOB[0], password=b"pass word") as ours:
            ours.subscribe(("$share/workers/jobs/#", 1))
            assert shared(eve) == shared(bob) == ["$share/workers/jobs/#"]
        eventually(lambda: shared(bob) == [], "the group of bob's namespace ended")
        assert shared(eve) == ["$share/workers/jobs/#"]


def test_views_and_counts_are_shown_to_who_may_describe_them(broker: Broker) -> None:
    """A clerk may describe one topic: neither the views over it nor how many topics there are is the clerk's to know."""
    root = httpx.Client(base_url=broker.http_url, auth=ROOT)
    root.post("/v1/topics", json={"name": "counted/open"}).raise_for_status()
    root.post("/v1/views", json={"name": "counted-secret", "filter": "counted/#"}).raise_for_status()
    root.post("/v1/users", json={"name": "clerk", "password": "secret-1"}).raise_for_status()
    rule = {"actions": ["describe", "consume"], "filter": "counted/open"}
    root.post("/v1/users/clerk/rules", json=rule).raise_for_status()
    clerk = httpx.Client(base_url=broker.http_url, auth=("clerk", "secret-1"))
    assert root.get("/v1/topics/counted/open").json()["views"] == ["counted-secret"]
    assert clerk.get("/v1/topics/counted/open").json()["views"] == []
    for path in ("/v1/topics", "/v1/views"):
        assert root.get(path).json()["total"] > 0
        assert clerk.get(path).json()["total"] is None

"""/metrics: what Prometheus reads, that it is all there, that it counts, and that the documentation tells of it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from mainstem.admin.metrics.families import BY_NAME, DROP_REASONS, FAMILIES
from mainstem.admin.metrics.reference import reference_page
from mainstem.server.clients import open_client
from mainstem.server.clients.client import Address, Message
from mainstem.server.round_trip import round_trip
from mainstem.testing import Broker

ROOT = Path(__file__).parents[3]
DEADLINE_S = 30.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(engine="segment", data=tmp_path / "data") as broker:
        yield broker


def told(broker: Broker, path: str = "/metrics") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Name and labels → value."""
    found = {}
    for family in text_string_to_metric_families(httpx.get(broker.http_url + path).text):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def value(broker: Broker, name: str, path: str = "/metrics", **labels: str) -> float:
    return told(broker, path).get((name, tuple(sorted(labels.items()))), 0.0)


def eventually(read: Any, wanted: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while (found := read()) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found == wanted


def publish(broker: Broker, topic: str, *values: str) -> None:
    client = open_client(Address("mqtt", broker.host, broker.mqtt_port, "", "", topic, {"qos": "1"}))
    for one in values:
        client.publish(Message(one.encode(), topic))
    client.flush()
    client.close()


def test_every_family_of_the_table_is_told_and_no_other(broker: Broker) -> None:
    publish(broker, "a", "x")
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)", httpx.get(f"{broker.http_url}/metrics/per-object").text, re.M))
    assert kinds == {name: family.kind for name, family in BY_NAME.items()}
    short = set(re.findall(r"^# TYPE (\w+)", httpx.get(f"{broker.http_url}/metrics").text, re.M))
    assert short == {name for name, family in BY_NAME.items() if not family.per_object}


def test_series_have_the_labels_of_the_table_and_every_drop_has_a_known_reason(broker: Broker) -> None:
    publish(broker, "a", "x")
    for name, labels in told(broker, "/metrics/per-object"):
        family = BY_NAME.get(name) or BY_NAME[re.sub(r"_(bucket|sum|count)$", "", name)]
        assert {label for label, _ in labels} - {"le"} == set(family.labels)
        if name == "mainstem_drops_total":
            assert dict(labels)["reason"] in DROP_REASONS


def test_the_documentation_is_what_the_code_says() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    assert page == reference_page(), "run: python -m mainstem.admin.metrics.reference > docs/metrics.md"


def test_the_dashboard_asks_for_metrics_that_exist_and_shows_what_matters() -> None:
    text = (ROOT / "deploy/grafana-dashboard.json").read_text()
    expressions = [target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]]
    asked = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for one in expressions
        for name in re.findall(r"\b(?:mainstem|process)_\w+", one)
    }
    assert asked <= BY_NAME.keys()
    assert {family.name for family in FAMILIES["Storage"] if family.kind == "histogram"} <= asked
    for name in ("held_bytes", "cache_requests_total", "background_tasks", "drops_total", "cursor_lag_messages"):
        assert f"mainstem_{name}" in asked


def test_appends_and_syncs_are_counted_in_histograms(broker: Broker) -> None:
    before = told(broker)
    publish(broker, "a/b", *("x" * 100 for _ in range(50)))
    after = told(broker)
    for name in ("append_seconds", "fsync_seconds", "fsync_records"):
        key = (f"mainstem_{name}_count", ())
        assert after[key] > before[key]
        infinite = (f"mainstem_{name}_bucket", (("le", "+Inf"),))
        assert after[infinite] == after[key]
    synced = ("mainstem_fsync_records_sum", ())
    assert after[synced] - before[synced] >= 50
    records = ("mainstem_appended_records_total", ())
    assert after[records] - before[records] >= 50


def test_reads_of_segments_are_counted_as_found_in_memory_or_not(broker: Broker) -> None:
    publish(broker, "cached", *map(str, range(20)))
    before = value(broker, "mainstem_cache_requests_total", cache="page_cache", result="hit")
    assert len(httpx.get(f"{broker.http_url}/v1/messages?topic=cached&from=earliest").json()["items"]) == 20
    assert value(broker, "mainstem_cache_requests_total", cache="page_cache", result="hit") > before


def test_engines_are_told_apart(broker: Broker) -> None:
    for engine in ("segment", "memory", "rocksdb"):
        body = {"name": f"on/{engine}", "settings": {"engine": engine, "layout": "dedicated"}}
        assert httpx.post(f"{broker.http_url}/v1/topics", json=body).status_code == 200
        publish(broker, f"on/{engine}", "x" * 1000)
    for engine in ("segment", "memory", "rocksdb"):
        assert value(broker, "mainstem_segments", engine=engine, tier="local") >= 1
        assert value(broker, "mainstem_storage_bytes", engine=engine, tier="local") > 0
        assert value(broker, "mainstem_logs", engine=engine) >= 1


def test_one_family_can_be_asked_for(broker: Broker) -> None:
    text = httpx.get(f"{broker.http_url}/metrics/detailed?family=mainstem_log_bytes&family=mainstem_topics").text
    assert set(re.findall(r"^# TYPE (\w+)", text, re.M)) == {"mainstem_log_bytes", "mainstem_topics"}
    wrong = httpx.get(f"{broker.http_url}/metrics/detailed?family=nonsense")
    assert wrong.status_code == 404
    assert "no metric nonsense" in wrong.json()["detail"]


def test_http_connections_and_bytes_are_counted_as_those_of_any_protocol(broker: Broker) -> None:
    with httpx.Client(base_url=broker.http_url) as http:
        http.get("/v1/overview")
        assert value(broker, "mainstem_connections", protocol="http") >= 1
        assert value(broker, "mainstem_bytes_total", protocol="http", direction="in") > 50
        assert value(broker, "mainstem_bytes_total", protocol="http", direction="out") > 500


def test_what_a_queue_drops_is_counted_with_its_reason(broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.queue_declare("short", durable=True, arguments={"x-max-length": 2})
    channel.confirm_delivery()
    for number in range(5):
        channel.basic_publish("", "short", str(number).encode())
    connection.close()
    eventually(lambda: value(broker, "mainstem_drops_total", protocol="queue", reason="maxlen"), 3.0)


def test_a_failed_login_is_counted(broker: Broker) -> None:
    body = {"name": "root", "password": "secret-of-root", "admin": True}
    assert httpx.post(f"{broker.http_url}/v1/users", json=body).status_code == 200
    assert httpx.get(f"{broker.http_url}/v1/overview", auth=("root", "wrong")).status_code == 401
    assert value(broker, "mainstem_login_failures_total") == 1


def test_the_lag_and_the_held_bytes_of_an_absent_session_are_told_by_its_name(tmp_path: Path) -> None:
    """Its segments are past their time, and stay because it has not read them."""
    settings = ("topics.retention_ms=1ms", "topics.segment_bytes=1MiB")
    with Broker(*settings, engine="segment", data=tmp_path / "data") as broker:
        session = paho.Client(CallbackAPIVersion.VERSION2, client_id="sleeper", clean_session=False)
        session.connect(broker.host, broker.mqtt_port)
        granted: list[Any] = []
        session.on_subscribe = lambda *told: granted.append(told)
        session.loop_start()
        session.subscribe("a/#", qos=1)
        eventually(lambda: len(granted), 1)
        session.disconnect()
        session.loop_stop()
        publish(broker, "a/b", *("x" * 100_000 for _ in range(30)))
        assert broker.app is not None
        maintenance = broker.app.broker.maintenance
        labels = {"namespace": "/", "protocol": "mqtt", "cursor": "sleeper", "kind": "session"}

        def held() -> bool:
            assert broker.loop is not None
            broker.loop.call_soon_threadsafe(maintenance.wake)
            return value(broker, "mainstem_held_bytes", holder="sessions") > 1_000_000

        eventually(held, True)
        assert value(broker, "mainstem_held_bytes", holder="queues") == 0
        assert value(broker, "mainstem_cursor_held_bytes", "/metrics/per-object", **labels) > 1_000_000
        assert value(broker, "mainstem_cursor_lag_messages", "/metrics/per-object", **labels) == 30


def test_messages_are_counted_in_and_out_by_every_protocol() -> None:
    with Broker() as broker:
        for protocol in ("mqtt", "kafka", "amqp", "nats"):
            arrivals = round_trip(broker.ports, broker.host, protocol, f"counted/{protocol}", protocol.encode())
            assert [one.error for one in arrivals] == [None] * 4
        for protocol in ("mqtt", "kafka", "amqp", "nats"):
            for direction, count in (("in", 1.0), ("out", 4.0)):
                labels = {"protocol": protocol, "direction": direction}
                eventually(lambda labels=labels: value(broker, "mainstem_messages_total", **labels), count)  # type: ignore[misc]


def test_flows_of_pipelines_are_told_by_state_and_each_by_its_name(broker: Broker) -> None:
    flow = {"lag": 7, "rows_total": 30, "bad_total": 2, "restarts": 1, "batch_ms": 1500, "batch_end_ms": 2000}
    told_flows = [{"flow": "f", "state": "running", **flow}, {"flow": "g", "state": "failed", "lag": 5}]
    httpx.post(f"{broker.http_url}/v1/pipelines/devices", json={"flows": told_flows}).raise_for_status()
    assert value(broker, "mainstem_pipeline_flows", state="running") == 1
    assert value(broker, "mainstem_pipeline_flows", state="failed") == 1
    assert value(broker, "mainstem_pipeline_lag_messages") == 7, "what has ended reads nothing"
    for name, wanted in (
        ("lag_messages", 7),
        ("rows_total", 30),
        ("dead_letters_total", 2),
        ("restarts_total", 1),
        ("batch_seconds", 1.5),
        ("batch_end_seconds", 2.0),
        ("up", 1),
    ):
        labels = {"namespace": "/", "pipeline": "devices", "flow": "f"}
        assert value(broker, f"mainstem_flow_{name}", "/metrics/per-object", **labels) == wanted, name


def test_traffic_is_told_by_topic_queue_and_namespace_and_latency_in_histograms(broker: Broker) -> None:
    httpx.post(f"{broker.http_url}/v1/queues", json={"name": "jobs", "filter": "jobs/#"}).raise_for_status()
    publish(broker, "jobs/a", "one")
    eventually(lambda: value(broker, "mainstem_ack_seconds_count") > 0, True)
    path = "/metrics/per-object"
    assert value(broker, "mainstem_each_queue_messages", path, namespace="/", queue="jobs", state="ready") == 1
    assert value(broker, "mainstem_namespace_records_total", path, namespace="/") >= 1
    assert value(broker, "mainstem_namespace_bytes", path, namespace="/") > 0
    app, loop = broker.app, broker.loop
    assert app is not None
    assert loop is not None
    asyncio.run_coroutine_threadsafe(app.history.sample(), loop).result(DEADLINE_S)
    publish(broker, "jobs/a", "two", "three")
    asyncio.run_coroutine_threadsafe(app.history.sample(), loop).result(DEADLINE_S)
    assert value(broker, "mainstem_topic_records_total", path, namespace="/", topic="jobs/a") == 2


def test_open_metrics_name_the_trace_of_a_message_beside_its_latency(tmp_path: Path) -> None:
    asked = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    with Broker("policies.traced/#.trace=100%", engine="segment", data=tmp_path) as broker:
        publish(broker, "traced/a", "one")

        def exemplars() -> list[Any]:
            answer = httpx.get(f"{broker.http_url}/metrics", headers=asked)
            assert answer.headers["content-type"].startswith("application/openmetrics-text")
            families = list(open_metrics(answer.text))  # refuses what is not OpenMetrics
            assert any(one.name == "mainstem_messages" and one.type == "counter" for one in families)
            samples = [one for family in families if family.name == "mainstem_ack_seconds" for one in family.samples]
            return [one.exemplar for one in samples if one.exemplar is not None]

        eventually(lambda: len(exemplars()), 1)
        (found,) = exemplars()
        traces = httpx.get(f"{broker.http_url}/v1/traces?topic=traced/a").json()["items"]
        assert found.labels == {"trace_id": traces[0]["trace_id"]}
        assert 0 < found.value < 60

"""Traces as OpenTelemetry spans: what a collector gets, and that a collector that is away costs nobody anything."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest

from mainstem.admin.otlp import QUEUE_MAX, OtlpExporter, spans_of
from mainstem.broker.tracing.traces import Step, Trace
from mainstem.model.errors import ConfigError
from mainstem.testing import Broker

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", got
    server.shutdown()
    server.server_close()


def test_a_followed_message_arrives_at_the_collector_below_its_publishers_span(
    collector: tuple[str, list[dict[str, Any]]],
) -> None:
    url, got = collector
    with Broker("topics.trace=100%", f"trace.otlp_url={url}") as broker:
        body = {"topic": "a/b", "value": "x", "headers": {"traceparent": PARENT}}
        httpx.post(f"{broker.http_url}/v1/messages", json=body).raise_for_status()
        deadline = time.monotonic() + 30
        while not got:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    (span,) = got[0]["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert span["name"] == "a/b publish"
    assert (span["traceId"], span["parentSpanId"]) == (PARENT[3:35], PARENT[36:52])
    assert int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"])
    assert {"key": "network.protocol.name", "value": {"stringValue": "http"}} in span["attributes"]


def test_each_who_got_it_has_a_span_that_says_how_it_ended() -> None:
    trace = Trace(10**18, "/", "a/b", 1, 7, "mqtt", trace_id="0" * 31 + "1")
    trace.add(Step(10**18 + 5, "durable", "log 1", "log"))
    for after, what in ((100, "taken"), (900, "dead")):
        trace.add(Step(10**18 + after, what, "jobs", "queue", "amqp"))
    publish, process = spans_of(trace)
    assert process["parentSpanId"] == publish["spanId"] != process["spanId"]
    assert int(process["endTimeUnixNano"]) == 10**18 + 900
    assert [one["name"] for one in process["events"]] == ["taken", "dead"]
    assert process["status"]["code"] == 2


def test_a_collector_that_is_away_loses_spans_and_nothing_else() -> None:
    exporter = OtlpExporter("http://127.0.0.1:9/v1/traces")
    trace = Trace(1, "/", "a", 1, 1, "mqtt", trace_id="1" * 32)
    began = time.monotonic()
    for _ in range(3 * QUEUE_MAX):
        exporter.put(trace)
    assert time.monotonic() - began < 30, "put never waits"
    deadline = time.monotonic() + 30
    while not exporter.dropped:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    exporter.stop()
    assert exporter.sent == 0


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(ConfigError, match="not an HTTP address"):
        OtlpExporter("collector:4317")

"""Ways of messages as OpenTelemetry spans, sent to a collector: OTLP/HTTP with JSON, by a thread of its own.

    TOPIC publish      producer   from the append until it was durable; its parent is the publisher's span, if it sent one
      └ NAME process   consumer   for each who got it: from the append until the ack, or the last that is known

Traces wait in a queue of QUEUE_MAX; what finds no room, and what the collector does not take, is counted and dropped.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from mainstem import __version__
from mainstem.broker.tracing.traces import Step, Trace
from mainstem.model.errors import ConfigError

logger = logging.getLogger("mainstem.trace")

QUEUE_MAX = 1_000
BATCH_MAX = 100
WAIT_S = 1.0
TIMEOUT_S = 10.0
QUIET_S = 60.0  # between two complaints about the collector
PRODUCER, CONSUMER = 4, 5
_MIX, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


class OtlpExporter:
    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"trace.otlp_url {url!r} is not an HTTP address", fix="http://localhost:4318/v1/traces")
        self._url = url
        self._waiting: queue.Queue[Trace | None] = queue.Queue(QUEUE_MAX)
        self.sent = self.dropped = 0
        self._complained_s = -QUIET_S
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def put(self, trace: Trace) -> None:
        """On the loop; never waits."""
        try:
            self._waiting.put_nowait(trace)
        except queue.Full:
            self.dropped += 1

    def stop(self) -> None:
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(WAIT_S)

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch, last = [first], time.monotonic() + WAIT_S
            more: Trace | None = first
            while len(batch) < BATCH_MAX and more is not None:
                try:
                    more = self._waiting.get(timeout=max(last - time.monotonic(), 0.001))
                except queue.Empty:
                    break
                if more is not None:
                    batch.append(more)
            self._send(batch)
            if more is None:
                return

    def _send(self, batch: list[Trace]) -> None:
        body = json.dumps(document_of(batch)).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                self.sent += len(batch)
        except (urllib.error.URLError, OSError) as error:
            self.dropped += len(batch)
            if time.monotonic() - self._complained_s >= QUIET_S:
                self._complained_s = time.monotonic()
                logger.warning("%s took no spans: %s; %d traces are lost so far", self._url, error, self.dropped)


def document_of(traces: list[Trace]) -> dict[str, Any]:
    spans = [span for trace in traces for span in spans_of(trace)]
    scope = {"name": "mainstem", "version": __version__}
    resource = {"attributes": _attributes({"service.name": "mainstem", "service.version": __version__})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]}


def spans_of(trace: Trace) -> list[dict[str, Any]]:
    stored = [one for one in trace.steps if one.kind == "log"]
    root = _span(trace, 0, f"{trace.topic} publish", PRODUCER, max((one.at_ns for one in stored), default=trace.stamp))
    root["parentSpanId"] = trace.parent_id
    root["attributes"] = _attributes(
        {
            "messaging.system": "mainstem",
            "messaging.operation.type": "publish",
            "messaging.destination.name": trace.topic,
            "messaging.client.id": trace.client,
            "messaging.message.id": str(trace.stamp),
            "messaging.message.body.size": trace.size,
            "network.protocol.name": trace.origin,
            "mainstem.namespace": trace.namespace,
            "mainstem.log": trace.log,
            "mainstem.offset": trace.offset,
        }
    )
    others: dict[tuple[str, str], list[Step]] = {}
    for step in trace.steps:
        if step.kind != "log":
            others.setdefault((step.kind, step.who), []).append(step)
    return [root, *(_consumer(trace, number, root, steps) for number, steps in enumerate(others.values(), 1))]


def _consumer(trace: Trace, number: int, root: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    span = _span(trace, number, f"{steps[0].who} process", CONSUMER, max(one.at_ns for one in steps))
    span["parentSpanId"] = root["spanId"]
    span["attributes"] = _attributes(
        {
            "messaging.system": "mainstem",
            "messaging.operation.type": "process",
            "messaging.destination.name": trace.topic,
            "messaging.consumer.group.name": steps[0].who if steps[0].kind == "group" else "",
            "network.protocol.name": steps[-1].protocol,
            "mainstem.consumer.kind": steps[0].kind,
            "mainstem.outcome": steps[-1].what,
        }
    )
    span["events"] = [{"timeUnixNano": str(one.at_ns), "name": one.what} for one in steps]
    if steps[-1].what == "dead":
        span["status"] = {"code": 2, "message": steps[-1].who}
    return span


def _span(trace: Trace, number: int, name: str, kind: int, end_ns: int) -> dict[str, Any]:
    return {
        "traceId": trace.trace_id,
        "spanId": f"{((trace.stamp + number) * _MIX & _MASK) or 1:016x}",
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(trace.stamp),
        "endTimeUnixNano": str(max(end_ns, trace.stamp)),
    }


def _attributes(given: dict[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in given.items()
        if value != ""
    ]

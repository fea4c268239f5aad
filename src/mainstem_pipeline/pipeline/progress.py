"""Seeing a pipeline run: a live table, a line a batch, or JSON; Prometheus metrics; the broker's console."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TextIO

from mainstem.model.counted import counted
from mainstem.model.errors import MainstemError
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.offsets import without_ids

REPORT_EVERY_S = 5.0
REPORT_RETRY_S = 0.5
WITHIN_EVERY_S = 5.0  # lines within a batch


@dataclass(slots=True)
class FlowProgress:
    """How a flow does, for people and programs alike."""

    flow: str
    state: str = "starting"  # starting | waiting | running | restarting | done | stopped | failed
    batch: int = -1
    rows: int = 0  # of the last batch
    rows_total: int = 0
    bad_total: int = 0
    rows_per_s: float = 0.0
    batch_ms: int = 0
    batch_end_ms: int = 0  # when the last batch was done, since 1970
    lag: int = 0  # rows written and not yet read
    restarts: int = 0
    error: str = ""
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    tasks_done: int = 0  # of the batch that runs
    tasks: int = 0
    left_s: float | None = None  # until nothing is left to read, as far as can be told

    def later_s(self) -> float:
        """What the batches after this one will take, at the speed of the last."""
        return self.lag / self.rows_per_s if self.rows_per_s else 0.0

    def take(self, progress: Mapping[str, Any]) -> None:
        """Note a batch as Spark tells of it."""
        self.batch = progress["batchId"]
        self.rows = progress["numInputRows"]
        self.rows_total += self.rows
        self.batch_ms = progress["durationMs"].get("triggerExecution", 0)
        self.batch_end_ms = int(time.time() * 1000)
        self.rows_per_s = self.rows * 1000 / self.batch_ms if self.batch_ms else 0.0
        for source in progress["sources"]:
            self.ends = _offsets(source.get("endOffset")) or self.ends
        self.state = "running" if self.rows else "waiting"
        self.tasks_done = self.tasks = 0

    def correct(self, rows: int) -> None:
        """The flow's own count of the batch, where Spark counts something else."""
        self.rows_total += rows - self.rows
        self.rows = rows
        self.rows_per_s = rows * 1000 / max(self.batch_ms, 1)
        self.state = "running" if rows else "waiting"


def _offsets(value: Any) -> dict[str, dict[str, int]]:
    parsed = json.loads(value) if isinstance(value, str) else value
    is_ours = isinstance(parsed, dict) and all(isinstance(one, dict) for one in parsed.values())
    return without_ids(parsed) if is_ours else {}


class Display(Protocol):
    def batch(self, flow: FlowProgress) -> None: ...
    def within(self, flow: FlowProgress) -> None:
        """A batch runs, and is so far."""

    def note(self, text: str) -> None: ...
    def close(self, flows: list[FlowProgress], seconds: float) -> None: ...


class Lines:
    """One line a batch."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._told: dict[str, int] = {}
        self._within_s = time.monotonic()

    def batch(self, flow: FlowProgress) -> None:
        is_new = self._told.get(flow.flow) != flow.batch
        if (flow.rows and is_new) or flow.state in ("failed", "restarting"):
            self.note(_line(flow))
        self._told[flow.flow] = flow.batch

    def within(self, flow: FlowProgress) -> None:
        now_s = time.monotonic()
        if now_s - self._within_s >= WITHIN_EVERY_S:
            self._within_s = now_s
            self.note(
                f"{flow.flow}: batch {flow.batch + 1}  {flow.tasks_done} of {counted(flow.tasks, 'task')}{_left(flow)}"
            )

    def note(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()

    def close(self, flows: list[FlowProgress], seconds: float) -> None:
        for flow in flows:
            bad = f", {counted(flow.bad_total, 'dead letter')}" if flow.bad_total else ""
            self.note(
                f"{flow.flow}: {flow.state}, {counted(flow.rows_total, 'row')}{bad} in "
                f"{counted(flow.batch + 1, 'batch', 'batches')}, {seconds:.1f} s"
            )


def _left(flow: FlowProgress) -> str:
    return f", about {flow.left_s:,.0f} s left" if flow.left_s is not None else ""


def _line(flow: FlowProgress) -> str:
    if flow.state in ("failed", "restarting"):
        return f"{flow.flow}: {flow.state}: {flow.error}"
    bad = f"  bad {flow.bad_total:,}" if flow.bad_total else ""
    return (
        f"{flow.flow}: batch {flow.batch}  rows {flow.rows:,}  {flow.rows_per_s:,.0f} rows/s  lag {flow.lag:,}  "
        f"{flow.batch_ms} ms{bad}"
    )


class JsonLines:
    """One JSON object a batch on standard output, one now and then within a long one, and one at the end."""

    def __init__(self) -> None:
        self._within_s = time.monotonic()

    def batch(self, flow: FlowProgress) -> None:
        self._print({"event": "batch", **asdict(flow)})

    def within(self, flow: FlowProgress) -> None:
        now_s = time.monotonic()
        if now_s - self._within_s >= WITHIN_EVERY_S:
            self._within_s = now_s
            told = {"flow": flow.flow, "batch": flow.batch + 1, "tasks_done": flow.tasks_done, "tasks": flow.tasks}
            self._print({"event": "progress", **told, "left_s": flow.left_s})

    def note(self, text: str) -> None:
        self._print({"event": "note", "text": text})

    def close(self, flows: list[FlowProgress], seconds: float) -> None:
        self._print({"event": "summary", "seconds": round(seconds, 3), "flows": [asdict(one) for one in flows]})

    @staticmethod
    def _print(content: Mapping[str, Any]) -> None:
        sys.stdout.write(json.dumps(content) + "\n")
        sys.stdout.flush()


class LiveTable:
    """A table that stays in place, for terminals."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._flows: dict[str, FlowProgress] = {}
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def batch(self, flow: FlowProgress) -> None:
        from rich.table import Table

        self._flows[flow.flow] = flow
        table = Table(box=None, pad_edge=False)
        for name in ("flow", "state", "batch", "tasks", "left", "rows", "rows/s", "lag", "bad", "ms"):
            table.add_column(name, justify="left" if name in ("flow", "state") else "right")
        for one in self._flows.values():
            table.add_row(
                one.flow,
                one.state,
                str(one.batch),
                f"{one.tasks_done} of {one.tasks}" if one.tasks else "",
                f"{one.left_s:,.0f} s" if one.left_s is not None else "",
                f"{one.rows_total:,}",
                f"{one.rows_per_s:,.0f}",
                f"{one.lag:,}",
                f"{one.bad_total:,}",
                str(one.batch_ms),
            )
        self._live.update(table, refresh=True)

    def within(self, flow: FlowProgress) -> None:
        self.batch(flow)

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def close(self, flows: list[FlowProgress], seconds: float) -> None:
        self._live.stop()
        Lines().close(flows, seconds)


def display_for(*, as_json: bool) -> Display:
    if as_json:
        return JsonLines()
    return LiveTable() if sys.stderr.isatty() else Lines()


class Metrics:
    """Prometheus, on a port of its own."""

    def __init__(self, pipeline: str, port: int) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

        self._pipeline = pipeline
        registry = CollectorRegistry()
        labels = ("pipeline", "flow")
        self._rows = Counter("mainstem_pipeline_rows", "Rows read.", labels, registry=registry)
        self._bad = Counter("mainstem_pipeline_dead_letters", "Rows that could not be used.", labels, registry=registry)
        self._lag = Gauge("mainstem_pipeline_lag", "Rows not yet read.", labels, registry=registry)
        self._ms = Gauge("mainstem_pipeline_batch_seconds", "Duration of the last batch.", labels, registry=registry)
        self._batch = Gauge("mainstem_pipeline_batch", "The last batch.", labels, registry=registry)
        self._up = Gauge("mainstem_pipeline_up", "Whether the flow runs.", labels, registry=registry)
        self._seen: dict[str, tuple[int, int]] = {}
        self._server, _ = start_http_server(port, addr="127.0.0.1", registry=registry)
        self.port: int = self._server.server_port

    def batch(self, flow: FlowProgress) -> None:
        labels = {"pipeline": self._pipeline, "flow": flow.flow}
        rows, bad = self._seen.get(flow.flow, (0, 0))
        self._rows.labels(**labels).inc(flow.rows_total - rows)
        self._bad.labels(**labels).inc(flow.bad_total - bad)
        self._seen[flow.flow] = (flow.rows_total, flow.bad_total)
        self._lag.labels(**labels).set(flow.lag)
        self._ms.labels(**labels).set(flow.batch_ms / 1000)
        self._batch.labels(**labels).set(flow.batch)
        self._up.labels(**labels).set(0 if flow.state in ("failed", "done", "stopped") else 1)

    def close(self) -> None:
        self._server.shutdown()


class Reports:
    """Tells the broker how the flows do, so that its console can show them. Never in the way: failures are dropped."""

    def __init__(self, pipeline: str, client: BrokerClient, topics: Mapping[str, Mapping[str, str]]) -> None:
        """`topics`: what each flow reads and writes, so that loops with other pipelines are noticed."""
        self._pipeline, self._client, self._topics = pipeline, client, topics
        self._last_s = 0.0

    def send(self, flows: list[FlowProgress], *, now: bool = False) -> None:
        if not now and time.monotonic() - self._last_s < REPORT_EVERY_S:
            return
        self._last_s = time.monotonic()
        with contextlib.suppress(MainstemError):
            told = [{**asdict(one), **self._topics.get(one.flow, {})} for one in flows]
            self._client.post(f"/v1/pipelines/{self._pipeline}", {"flows": told})

    def close(self) -> None:
        self._client.close()

"""Running a pipeline: start Spark, start the flows, watch them, start again what failed for a passing reason, sum up."""

from __future__ import annotations

import hashlib
import signal
import threading
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import ConfigError, MainstemError, NotFound
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.offsets import Offsets, without_ids
from mainstem_pipeline.options import Given, read_options
from mainstem_pipeline.pipeline.estimate import Estimate
from mainstem_pipeline.pipeline.failures import DONE, exit_code, is_transient, understood
from mainstem_pipeline.pipeline.flows import FlowRun, parse_progress, time_ms
from mainstem_pipeline.pipeline.loops import check_loops, nodes_of, told_topics, views_of
from mainstem_pipeline.pipeline.model import Flow, Pipeline
from mainstem_pipeline.pipeline.places import check_places
from mainstem_pipeline.pipeline.progress import REPORT_RETRY_S, Display, FlowProgress, Metrics, Reports
from mainstem_pipeline.pipeline.sinks import Sinks
from mainstem_pipeline.pipeline.state import State
from mainstem_pipeline.pipeline.store import hadoop_settings
from mainstem_pipeline.pipeline.unfinished import check_finishable
from mainstem_pipeline.scans import Scan
from mainstem_pipeline.session import SparkOptions, retried, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 0.25
RESTARTS_MAX = 10  # in a row, without a batch between them
RESTARTS_ONCE_MAX = 3
PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    once: bool = False
    backfill_from: str = ""
    backfill_to: str = ""
    flows: tuple[str, ...] = ()
    reset: tuple[str, ...] = ()
    accept_change: tuple[str, ...] = ()
    master: str = "local[*]"
    metrics_port: int | None = None
    fast_start: bool = False

    @property
    def backfill(self) -> bool:
        return bool(self.backfill_from or self.backfill_to)


class Watched:
    """A flow that runs, and how it does."""

    def __init__(self, run: FlowRun) -> None:
        self.run = run
        self.progress = FlowProgress(run.flow.name)
        self.query: StreamingQuery | None = None
        self.error: MainstemError | None = None
        self.failures = 0  # in a row
        self.resume_s = 0.0
        self.archived_ends: Offsets = {}
        self.estimate = Estimate()
        self._seen = -1

    @property
    def over(self) -> bool:
        return self.progress.state in ("done", "failed")

    def table_is_there(self) -> bool:
        """Whether the table that it reads exists."""
        from mainstem_pipeline.lake.catalog import load_table, open_catalog

        assert self.run.pipeline.lake is not None
        try:
            load_table(open_catalog(self.run.pipeline.lake), self.run.flow.source.value)
        except NotFound:
            return False
        return True

    def news(self) -> bool:
        """Take in the batches Spark has told of since; True if there were any."""
        if self.query is None:
            return False
        fresh = [
            one
            for one in map(parse_progress, self.query.recentProgress)
            if one["batchId"] > self._seen or one["numInputRows"]
        ]
        told = False
        for one in fresh:
            if one["batchId"] <= self._seen:
                continue
            self._seen = one["batchId"]
            self.progress.take(one)
            result = self.run.results.pop(self._seen, None)
            if result is not None:
                self.progress.bad_total += result.bad
                rows = result.written.get("rows", result.rows)  # an archive's rows never pass through Spark
                if rows is not None:
                    self.progress.correct(rows)
                if result.written:
                    self.archived_ends = without_ids(result.written["ends"])
            self.failures = 0
            told = True
        if told:
            self.progress.lag = self._lag()
        return told

    def _lag(self) -> int:
        """Rows written and not yet read, as the broker counts them; what it cannot say now is told as it was."""
        flow = self.run.flow
        source = flow.archive.source if flow.archive is not None else flow.source
        if source.kind == "table" or not self.progress.ends:
            return 0
        broker = {**self.run.pipeline.broker, "retrySeconds": str(REPORT_RETRY_S)}
        scan = Scan(read_options({**broker, **source.options()}, streaming=True))
        try:
            return scan.limited(self.progress.ends, scan.latest_offsets())[1]
        except MainstemError:
            return self.progress.lag
        finally:
            scan.close()


class Runner:
    def __init__(
        self, pipeline: Pipeline, options: RunOptions, display: Display, spark: SparkSession | None = None
    ) -> None:
        """With `spark`, the flows run in a session that is there already, and stays."""
        self._pipeline, self._options, self._display = with_broker(pipeline), options, display
        self._given_spark = spark
        self._state = State(pipeline)
        self._stop = threading.Event()
        self._run_id = str(uuid.uuid4())
        self._flows: list[Watched] = []
        self._metrics: Metrics | None = None
        self._reports: Reports | None = None
        self._topics: dict[str, dict[str, str]] = {}  # what each flow reads and writes

    def stop(self) -> None:
        """Ask the flows to end after their batch; safe in a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Until all flows are done, one has failed for good, or `stop`; returns the exit code."""
        started = time.monotonic()
        chosen = self._chosen()
        self._state.take()
        try:
            for name in self._options.reset:
                self._state.reset(name)
            if not self._options.backfill:
                for flow in chosen:
                    self._state.check_unchanged(flow, frozenset(self._options.accept_change))
            self._check_broker()
            if not self._options.backfill:
                self._check_unfinished(chosen)
            spark = self._given_spark or self._start_spark()
            try:
                check_places(spark, self._pipeline)
                self._open_reports()
                return self._run_flows(spark, chosen)
            finally:
                if self._given_spark is None:
                    spark.stop()
        finally:
            self._state.release()
            self._display.close([one.progress for one in self._flows], time.monotonic() - started)

    # -- starting

    def _chosen(self) -> list[Flow]:
        names = self._options.flows
        for name in (*names, *self._options.reset, *self._options.accept_change):
            if self._pipeline.flow(name) is None:
                known = ", ".join(flow.name for flow in self._pipeline.flows)
                raise ConfigError(f"pipeline {self._pipeline.name} has no flow {name!r}; it has {known}")
        return [flow for flow in self._pipeline.flows if not names or flow.name in names]

    def _client(self, retry_s: float) -> BrokerClient:
        connection = Given(dict(self._pipeline.broker), ()).connection()
        return BrokerClient(
            connection.url,
            user=connection.user,
            password=connection.password,
            namespace=connection.namespace,
            retry_s=retry_s,
        )

    def _check_broker(self) -> None:
        """Before Spark's ten seconds: is there a broker at all, and will the flows end?"""
        client = self._client(5.0)
        try:
            client.post("/v1/scan/lanes", {"select": {"kind": "topics", "topics": []}})
            for note in check_loops(self._pipeline, client):
                self._display.note(note)
            nodes = nodes_of(self._pipeline.name, self._pipeline.flows, views_of(self._pipeline, client))
            self._topics = {one.flow: told_topics(one) for one in nodes}
        finally:
            client.close()

    def _check_unfinished(self, chosen: list[Flow]) -> None:
        """What an edited file would lose of a batch that a failure left half done is told before anything runs."""
        sinks = Sinks(self._pipeline.broker, self._pipeline.lake, self._display.note)
        for flow in chosen:
            if flow.name not in self._options.accept_change:
                check_finishable(flow, self._state, sinks.last_batch)
            self._state.remember(flow)

    def _start_spark(self) -> SparkSession:
        return start_session(
            SparkOptions(
                master=self._options.master,
                name=f"mainstem {self._pipeline.name}",
                log=self._state.log,
                settings={
                    **hadoop_settings(self._pipeline.state, self._pipeline.store_properties),
                    **self._pipeline.spark,
                },
                fast_start=self._options.fast_start,
                announce=self._display.note,
            )
        )

    def _open_reports(self) -> None:
        if self._options.metrics_port is not None:
            self._metrics = Metrics(self._pipeline.name, self._options.metrics_port)
            self._display.note(f"metrics: http://127.0.0.1:{self._metrics.port}/metrics")
        if self._pipeline.record:
            self._reports = Reports(self._pipeline.name, self._client(REPORT_RETRY_S), self._topics)

    # -- running

    def _run_flows(self, spark: SparkSession, chosen: list[Flow]) -> int:
        self._ship_functions(spark)
        self._flows = [
            Watched(FlowRun(self._pipeline, flow, spark, self._state, self._display.note)) for flow in chosen
        ]
        self._check_flows()
        if self._options.backfill:
            return self._backfill()
        for flow in self._flows:
            if not self._waits(flow):
                self._start(flow)
        while not all(flow.over for flow in self._flows):
            if self._stop.wait(POLL_S):
                break
            for flow in self._flows:
                self._watch(flow)
            self._report()
            self._state.renew()
            if any(flow.progress.state == "failed" for flow in self._flows):
                break
        return self._end()

    def _waits(self, flow: Watched) -> bool:
        """A flow that reads another's table waits for it: with `--once` until the other is done, else until it is there."""
        makers = [one for one in self._flows if one.run.flow.name in self._pipeline.makers(flow.run.flow)]
        if not makers:
            return False
        if self._options.once and not all(one.over for one in makers):
            return True
        if flow.table_is_there():
            return False
        if self._options.once:  # nothing came, so no table was made
            flow.progress.state = "done"
        return True

    def _ship_functions(self, spark: SparkSession) -> None:
        """Files with Python transforms, to where tasks run: functions they define may be called there."""
        files = {
            step.python.rpartition(":")[0] for flow in self._pipeline.flows for step in flow.transforms if step.python
        }
        for file in files:
            spark.sparkContext.addPyFile(file)

    def _check_flows(self) -> None:
        problems = []
        for flow in self._flows:
            if self._pipeline.makers(flow.run.flow) and not flow.table_is_there():
                continue
            try:
                retried(flow.run.check)
            except Exception as error:
                told = understood(error, flow.run.flow.name)
                if is_transient(error) or not isinstance(told, MainstemError):
                    raise told from error
                fix = f" ({told.fix})" if told.fix else ""
                problems.append(f"{self._pipeline.path.name}:{flow.run.flow.line}: {told}{fix}")
        if problems:
            raise ConfigError("\n  ".join([f"{self._pipeline.path}: {len(problems)} problem(s)", *problems]))

    def _start(self, flow: Watched) -> None:
        flow.run.failure = None
        try:
            flow.query = retried(lambda: flow.run.start(once=self._options.once, run=self._run_id))
            flow.progress.state = "waiting"
        except Exception as error:
            self._failed(flow, understood(error, flow.run.flow.name), error)

    def _watch(self, flow: Watched) -> None:
        if flow.over:
            return
        if flow.progress.state in ("starting", "restarting"):
            if time.monotonic() < flow.resume_s:
                return
            if self._waits(flow):
                flow.resume_s = time.monotonic() + PAUSE_S_MIN
            else:
                self._start(flow)
            return
        if flow.news():
            self._tell(flow)
            self._archived(flow)
        query = flow.query
        assert query is not None
        if query.isActive:
            if flow.estimate.look(flow.run.session, str(query.runId), flow.progress):
                self._display.within(flow.progress)
            return
        error = query.exception()
        if error is None:
            flow.news()
            flow.progress.state = "done"
            self._tell(flow)
            self._archived(flow)
        else:
            self._failed(flow, flow.run.failure or understood(error, flow.run.flow.name), error)

    def _failed(self, flow: Watched, error: MainstemError, cause: Exception) -> None:
        """Start it again if that may help and has not failed too often; else it is over."""
        flow.failures += 1
        flow.progress.error = str(error)
        starts_left = (RESTARTS_ONCE_MAX if self._options.once else RESTARTS_MAX) - flow.failures
        if (is_transient(error) or is_transient(cause)) and starts_left >= 0:
            pause_s = min(PAUSE_S_MIN * 2 ** (flow.failures - 1), PAUSE_S_MAX)
            flow.progress.state, flow.resume_s = "restarting", time.monotonic() + pause_s
            flow.progress.restarts += 1
        else:
            flow.progress.state, flow.error = "failed", error
        self._tell(flow)

    def _archived(self, flow: Watched) -> None:
        """Tell retention how far the table is. Only batches that Spark has committed: nothing of them can be undone."""
        archive = flow.run.flow.archive
        if archive is None or not flow.archived_ends or archive.source.kind == "view":
            return  # a view leaves out what its condition does not mean: nothing may be forgotten on its word
        topic_filter = archive.source.value if archive.source.kind == "filter" else None
        client = self._client(REPORT_RETRY_S)
        try:
            client.post(f"/v1/archives/{archive.table}", {"ends": flow.archived_ends, "filter": topic_filter})
        except MainstemError as error:
            self._display.note(f"{flow.run.flow.name}: the broker was not told how far the archive is: {error}")
        finally:
            client.close()

    def _tell(self, flow: Watched) -> None:
        self._state.keep_status(flow.run.flow.name, _status(flow.progress))
        self._display.batch(flow.progress)
        if self._metrics is not None:
            self._metrics.batch(flow.progress)
        self._report(now=flow.over)

    def _report(self, *, now: bool = False) -> None:
        """To the broker's console: at each news, and now and then without any, so that it knows that this still runs."""
        if self._reports is not None:
            self._reports.send([one.progress for one in self._flows], now=now)

    def _end(self) -> int:
        """Stop what still runs, and say how it ended."""
        for flow in self._flows:
            if flow.query is not None and flow.query.isActive:
                flow.query.stop()
                flow.news()
                flow.progress.state = "stopped"
                self._tell(flow)
        if self._metrics is not None:
            self._metrics.close()
        if self._reports is not None:
            self._report(now=True)
            self._reports.close()
        failed = [flow for flow in self._flows if flow.error is not None]
        if failed:
            assert failed[0].error is not None
            raise PipelineFailed(failed[0].error)
        return DONE

    # -- backfill

    def _backfill(self) -> int:
        options = range_options(self._options.backfill_from, self._options.backfill_to)
        for flow in self._flows:
            if flow.run.flow.archive is not None or flow.run.flow.source.kind == "table":
                self._display.note(f"{flow.run.flow.name}: an archive or table flow has no backfill, it is skipped")
                continue
            name = f"{self._pipeline.name}/{flow.run.flow.name}/{sorted(options.items())}"
            query = f"backfill-{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"
            began = time.monotonic()
            try:
                result = retried(lambda one=flow, q=query: one.run.backfill(options, query=q, run=self._run_id))  # type: ignore[misc]
            except Exception as error:
                told = flow.run.failure or understood(error, flow.run.flow.name)
                flow.progress.state, flow.progress.error = "failed", str(told)
                self._report(now=True)
                raise PipelineFailed(told) from error
            flow.progress.batch, flow.progress.bad_total, flow.progress.state = 0, result.bad, "done"
            flow.progress.batch_ms = int((time.monotonic() - began) * 1000)
            self._display.batch(flow.progress)
        return self._end()


def with_broker(pipeline: Pipeline) -> Pipeline:
    """The broker's address written out: Spark's own processes may not see this one's environment."""
    found = Given(dict(pipeline.broker), ()).connection()
    told = {"url": found.url, "user": found.user, "password": found.password, "namespace": found.namespace}
    return replace(pipeline, broker={**pipeline.broker, **{name: value for name, value in told.items() if value}})


class PipelineFailed(MainstemError):
    """Carries the flow's failure to the command line, with its exit code."""

    def __init__(self, error: MainstemError) -> None:
        super().__init__(error.message, fix=error.fix, code=error.code)
        self.exit_code = exit_code(error)


def range_options(start: str, end: str) -> dict[str, str]:
    """`--from` and `--to` as options of the source."""
    options: dict[str, str] = {}
    if start and start != "earliest":
        options["startingTimestamp"] = str(time_ms(start.removeprefix("ts:")))
    if end and end != "latest":
        options["endingTimestamp"] = str(time_ms(end.removeprefix("ts:")))
    return options


def _status(progress: FlowProgress) -> dict[str, Any]:
    return {
        "state": progress.state,
        "batch": progress.batch,
        "rows": progress.rows_total,
        "bad": progress.bad_total,
        "lag": progress.lag,
        "error": progress.error,
    }


def run_with_signals(runner: Runner) -> int:
    """SIGINT and SIGTERM end the flows after their batch."""
    stops = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: runner.stop()) for number in stops]
    try:
        return runner.run()
    finally:
        for number, handler in zip(stops, before, strict=True):
            signal.signal(number, handler)

"""One flow as a streaming query: read, decode, check, transform, write, and what could not be used beside it.

A flow without state is transformed batch by batch: good rows go to the sinks, bad ones to the dead letters, in the same
batch. A flow with state (a watermark, or mode update) is transformed as a stream; its bad rows travel beside the good
ones in the same query and reach the dead letters with the same batch.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import ConfigError, MainstemError
from mainstem_pipeline.pipeline.dead_letters import Quality
from mainstem_pipeline.pipeline.decoding import REASON, SOURCE_COLUMNS, decoded, inferred_schema
from mainstem_pipeline.pipeline.failing_rows import Found, failing_rows
from mainstem_pipeline.pipeline.failures import SinkFailed
from mainstem_pipeline.pipeline.loops import letter_topics
from mainstem_pipeline.pipeline.model import ArchiveTo, Flow, Pipeline, SideTable, Sink
from mainstem_pipeline.pipeline.side_tables import is_frozen, side_table
from mainstem_pipeline.pipeline.sinks import BatchOf, RowsRefused, Sinks
from mainstem_pipeline.pipeline.state import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from mainstem_pipeline.lake.decoded import Decoded


FAILING = "failing"  # names the letters of rows on which SQL or Python fails


@dataclass(slots=True)
class BatchResult:
    """What a batch did, as far as the flow itself counts."""

    batch: int
    bad: int = 0
    rows: int | None = None  # read, where Spark's own count is not that
    written: dict[str, Any] = field(default_factory=dict)


class FlowRun:
    """A flow in a session of its own: its views and tables are nobody else's."""

    def __init__(
        self,
        pipeline: Pipeline,
        flow: Flow,
        spark: SparkSession,
        state: State,
        show: Callable[[str], None],
        sinks: Sinks | None = None,
    ) -> None:
        self.pipeline, self.flow, self._state = pipeline, flow, state
        self.session = spark.newSession()
        self._sinks = sinks or Sinks(pipeline.broker, pipeline.lake, show)
        self._quality = Quality(flow, self._sinks, self.schema)
        self.failure: MainstemError | None = None  # raised inside a batch: Spark would only show its text
        self.results: dict[int, BatchResult] = {}
        self._is_first_batch = True

    # -- reading

    def source_options(self) -> dict[str, str]:
        return {**self.pipeline.broker, **self.flow.source.options(), "columns": SOURCE_COLUMNS}

    def schema(self) -> str:
        """The decode schema: written down, or inferred once from what is there."""
        flow = self.flow
        if not flow.decode.infer:
            return flow.decode.schema
        kept = self._state.schema(flow.name)
        if not kept:
            records = self.session.read.format("mainstem").options(**self.source_options()).load()
            kept = inferred_schema(self._meant(records))
            self._state.keep_schema(flow.name, kept)
        return kept

    def stream(self) -> DataFrame:
        flow = self.flow
        reader = self.session.readStream
        if flow.source.kind == "table":
            from mainstem_pipeline.lake.stream import TableSource, table_options

            assert self.pipeline.lake is not None
            self.session.dataSource.register(TableSource)
            return (
                reader.format("mainstem_table").options(**table_options(self.pipeline.lake, flow.source.value)).load()
            )
        options = {**self.source_options(), **start_options(flow.start, self.pipeline)}
        return reader.format("mainstem").options(**options, maxOffsetsPerTrigger=str(flow.rows_per_batch_max)).load()

    def rows(self, records: DataFrame) -> DataFrame:
        """Decoded rows with `_reason`; rows of a table are as good as they are."""
        from pyspark.sql import functions as F

        if self.flow.source.kind == "table":
            checked = records.withColumn(REASON, F.lit(None).cast("string"))
            return self._quality.ruled(checked)
        return decoded(self._meant(records), self.flow.decode, self.schema(), self.flow.rules)

    def _meant(self, records: DataFrame) -> DataFrame:
        """What a wildcard means, without the dead letters of this file's flows: each would be read, and die, for ever."""
        letters = letter_topics(self.pipeline.flows) if self.flow.source.kind != "topics" else []
        return records.where(~records["canonical_topic"].isin(letters)) if letters else records

    # -- transforming

    def transformed(self, rows: DataFrame, session: SparkSession) -> DataFrame:
        frame = rows
        for step in self.flow.transforms:
            if step.sql:
                frame.createOrReplaceTempView("input")
                frame = session.sql(step.sql)
            else:
                frame = load_function(step.python)(frame)
        return frame

    def check(self) -> None:
        """Have Spark analyse the flow over no rows: unknown columns and tables are found before anything runs."""
        if self.flow.archive is not None:
            return
        self._register_tables(self.session)
        if self.flow.source.kind == "table":
            from mainstem_pipeline.lake.tables import read_table

            assert self.pipeline.lake is not None
            records = read_table(self.session, self.pipeline.lake, self.flow.source.value).limit(0)
        else:
            schema = self.session.read.format("mainstem").options(**self.source_options()).load().schema
            records = self.session.createDataFrame([], schema)
        rows = self.rows(records)
        if self.flow.watermark is not None and self.flow.watermark.column not in rows.columns:
            raise ConfigError(
                f"flow {self.flow.name}: there is no column {self.flow.watermark.column!r} for the watermark",
                fix=f"one of {', '.join(rows.columns)}",
            )
        out = self.transformed(rows.where(f"{REASON} is null").drop(REASON), self.session)
        for sink in self.flow.sinks:
            self._sinks.check(sink, out)

    def _register_tables(self, session: SparkSession, *, live: bool = False) -> None:
        for table in self.pipeline.tables:
            self._register(session, table, live=live)

    def _register(self, session: SparkSession, table: SideTable, *, live: bool = False) -> None:
        side_table(session, self.pipeline, table, live=live).createOrReplaceTempView(table.name)

    def _look_again(self) -> None:
        """Side tables by URL, which Spark looked up when the query was made: the next batch has them as of now."""
        for table in self.pipeline.tables:
            if is_frozen(table):
                self.session.catalog.refreshTable(table.name)

    # -- running

    def start(self, *, once: bool, run: str) -> StreamingQuery:
        flow = self.flow
        if flow.archive is not None:
            frame, process = self._archive()
        elif flow.stateful:
            frame, process = self._stateful(run)
        else:
            frame, process = self.stream(), self._stateless(run)
        writer = (
            frame.writeStream.queryName(f"{self.pipeline.name}.{flow.name}")
            .outputMode(flow.mode)
            .option("checkpointLocation", self._state.checkpoint(flow.name))
            .foreachBatch(self._guarded(process))
        )
        writer = (
            writer.trigger(availableNow=True)
            if once
            else writer.trigger(processingTime=f"{flow.trigger_ms} milliseconds")
        )
        return writer.start()

    def backfill(self, options: Mapping[str, str], *, query: str, run: str) -> BatchResult:
        """A range once, as one batch of a query of its own name: run again, it changes nothing."""
        records = self.session.read.format("mainstem").options(**{**self.source_options(), **options}).load()
        self._process(records, 0, query, run, self.session, persist=False)
        return self.results[0]

    def _guarded(self, process: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        def guarded(frame: DataFrame, batch: int) -> None:
            try:
                process(frame, batch)
                self._look_again()
            except MainstemError as error:
                self.failure = error
                raise

        return guarded

    def _stateless(self, run: str) -> Callable[[DataFrame, int], None]:
        def process(frame: DataFrame, batch: int) -> None:
            self._process(frame, batch, query_of(frame), run, frame.sparkSession, persist=True)

        return process

    def _process(
        self, records: DataFrame, batch: int, query: str, run: str, session: SparkSession, *, persist: bool
    ) -> None:
        self._register_tables(session)
        place = BatchOf(query, run, batch)
        rows = self.rows(records)
        result = self.results[batch] = BatchResult(batch)
        if not self._quality.may_be_bad:
            self._make_and_write(rows.drop(REASON), place, session)
            return
        rows = rows.persist() if persist else rows
        try:
            result.bad = self._quality.checked(rows)
            self._make_and_write(rows.where(f"{REASON} is null").drop(REASON), place, session)
            if result.bad:
                self._quality.keep(rows.where(f"{REASON} is not null"), place)
        finally:
            if persist:
                rows.unpersist()

    def _make_and_write(self, rows: DataFrame, batch: BatchOf, session: SparkSession) -> None:
        """Transform the rows for each sink. Those on which SQL or Python fails are dead letters; the others arrive."""

        def made(some: DataFrame) -> DataFrame:
            return self.transformed(some, session)

        sifted = None
        if self._has_failing_letters(batch):  # a rerun: rows that were dead letters must not arrive after all
            sifted = self._sifted(rows, batch, made, session)
            rows = sifted if sifted is not None else rows
        for sink in self.flow.sinks:
            try:
                self._write(sink, made(rows), batch)
            except SinkFailed:
                before = sifted
                if sifted is None:
                    sifted = self._sifted(rows, batch, made, session)
                    rows = sifted if sifted is not None else rows
                taken = self._taken(sink, rows, batch, made, session)
                if taken is None and sifted is before:
                    raise  # no row is to blame
                self._write(sink, made(taken if taken is not None else rows), batch)

    def _has_failing_letters(self, batch: BatchOf) -> bool:
        """Whether a run before this one found rows of this very batch on which the transforms fail."""
        is_first, self._is_first_batch = self._is_first_batch, False
        if not is_first or not self.flow.transforms:
            return False
        letters = self.flow.dead_letters.sinks[0]
        return self._sinks.last_batch(replace(letters, name=f"{letters.name}:{FAILING}"), batch.query) >= batch.batch

    def _sifted(
        self, rows: DataFrame, batch: BatchOf, made: Callable[[DataFrame], DataFrame], session: SparkSession
    ) -> DataFrame | None:
        """The rows on which the transforms do not fail, whatever a sink takes of them; None if they fail on none."""
        first_sql = self.flow.transforms[0].sql if self.flow.transforms else ""
        found = failing_rows(rows, first_sql, made, session)
        return self._rest(found, batch, FAILING) if found is not None else None

    def _taken(
        self, sink: Sink, rows: DataFrame, batch: BatchOf, made: Callable[[DataFrame], DataFrame], session: SparkSession
    ) -> DataFrame | None:
        """The rows on which the sink's own expressions do not fail; None if they fail on none."""
        found = failing_rows(rows, "", lambda some: self._sinks.wanted(sink, made(some)), session)
        return self._rest(found, batch, f"{FAILING}:{sink.name}") if found is not None else None

    def _rest(self, found: Found, batch: BatchOf, of: str) -> DataFrame:
        """Dead letters first: once a sink has the batch a rerun passes it over, and would find nothing that fails."""
        bad, rest = found.bad.count(), found.rest.count()
        self._quality.limit(bad + rest, bad, lambda: self._quality.letters(found.bad))
        self._quality.keep(found.bad, batch, of=of)
        self.results.setdefault(batch.batch, BatchResult(batch.batch)).bad += bad
        return found.rest

    def _write(self, sink: Sink, frame: DataFrame, batch: BatchOf) -> None:
        try:
            self._sinks.write(sink, frame, batch)
        except RowsRefused:
            self._write_what_is_taken(sink, frame, batch)

    def _write_all(self, frame: DataFrame, batch: BatchOf) -> None:
        for sink in self.flow.sinks:
            self._write(sink, frame, batch)

    def _write_what_is_taken(self, sink: Sink, frame: DataFrame, batch: BatchOf) -> None:
        """Again, without the rows that the sink refuses by themselves: those are dead letters of this batch."""
        from pyspark.sql import functions as F

        both = self._sinks.refused(sink, frame, batch).persist()
        try:
            total, bad = both.agg(F.count(F.lit(1)), F.count("reason")).collect()[0]
            refused = both.where("reason is not null").select("row.*", F.col("reason").alias(REASON))
            self._quality.limit(total, bad, lambda: self._quality.letters(refused), of=f"this batch to {sink.name}")
            taken = replace(sink, options={name: value for name, value in sink.options.items() if name != "where"})
            # Letters first: a sink that has the batch is passed over by a rerun, which would find none of them.
            self._quality.keep(refused, batch, of=sink.name)
            self._sinks.write(taken, both.where("reason is null").select("row.*"), batch)
            self.results.setdefault(batch.batch, BatchResult(batch.batch)).bad += bad
        finally:
            both.unpersist()

    def _stateful(self, run: str) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
        from pyspark.sql import functions as F

        self._register_tables(self.session, live=True)
        rows = self.rows(self.stream())
        good = rows.where(f"{REASON} is null").drop(REASON)
        if self.flow.watermark is not None:
            good = good.withWatermark(self.flow.watermark.column, self.flow.watermark.delay)
        out = self.transformed(good, self.session)
        if not self._quality.may_be_bad:
            return out, lambda frame, batch: self._write_all(frame, BatchOf(query_of(frame), run, batch))
        bad = self._quality.counted(rows)
        nothing = F.lit(None)
        both = out.select(
            F.struct(*map(F.col, out.columns)).alias("good"),
            nothing.cast(bad.schema["bad"].dataType).alias("bad"),
            nothing.cast("bigint").alias("total"),
        ).unionByName(bad.withColumn("good", nothing.cast(out.schema)))

        def process(frame: DataFrame, batch: int) -> None:
            place = BatchOf(query_of(frame), run, batch)
            frame.persist()
            try:
                letters = frame.where("bad is not null").select("bad.*")
                total, count = frame.agg(F.coalesce(F.sum("total"), F.lit(0)), F.count("bad")).collect()[0]
                self.results[batch] = BatchResult(batch, count, total)
                self._quality.limit(total, count, lambda: letters)
                self._write_all(frame.where("good is not null").select("good.*"), place)
                if count:
                    self._quality.keep_letters(letters, place)
            finally:
                frame.unpersist()

        return both, process

    def _archive(self) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
        from mainstem_pipeline.lake.archive import TASK_BYTES, Archive
        from mainstem_pipeline.lake.decoded_archive import DecodedArchive

        archive, lake = self.flow.archive, self.pipeline.lake
        assert archive is not None
        assert lake is not None
        (kind, value), *_ = archive.source.options().items()
        source = f"{kind}:{value}"
        if archive.decoded_only:
            broker, layout = self.pipeline.broker, (archive.partition, archive.sort)
            target: Archive = DecodedArchive(lake, archive.table, source, broker, *layout)
        else:
            target = Archive(lake, archive.table, source)
        start = target.position or self.flow.start  # without a checkpoint it goes on where the table ends
        options = {
            **self.pipeline.broker,
            **archive.source.options(),
            **start_options(start, self.pipeline),
            "descriptors": "true",
            "taskBytes": str(TASK_BYTES),
            "maxOffsetsPerTrigger": str(self.flow.rows_per_batch_max),
            "failOnDataLoss": str(not archive.accept_loss).lower(),
        }
        frame = self.session.readStream.format("mainstem").options(**options).load()

        beside = self._decoded(archive)

        def process(batch_frame: DataFrame, batch: int) -> None:
            done = target.batch(query_of(batch_frame), batch_frame, batch)
            if beside is not None:
                beside.catch_up()
            self.results[batch] = BatchResult(batch, written=asdict(done))

        return frame, process

    def _decoded(self, archive: ArchiveTo) -> Decoded | None:
        """The decoded table beside an archive, where one is wanted: brought to where the raw table is."""
        from mainstem_pipeline.lake.decode_tasks import in_spark
        from mainstem_pipeline.lake.decoded import Decoded

        if not archive.decoded:
            return None
        assert self.pipeline.lake is not None
        made = Decoded(
            self.pipeline.lake,
            archive.table,
            archive.decoded,
            self.pipeline.broker,
            archive.partition,
            archive.sort,
            run=in_spark(self.session),
        )
        made.catch_up()
        return made


def query_of(frame: DataFrame) -> str:
    """The id of the query whose batch this is."""
    found = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found is not None, "only inside foreachBatch"
    return found


def load_function(spec: str) -> Callable[[DataFrame], DataFrame]:
    """`file.py:function`, loaded from the file."""
    file, _, name = spec.rpartition(":")
    path = Path(file)
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
        function: Callable[[DataFrame], DataFrame] = getattr(module, name)
    except Exception as error:
        raise ConfigError(f"{path}: {type(error).__name__}: {error}") from error
    return function


def start_options(start: str, pipeline: Pipeline) -> dict[str, str]:
    """`start` of a flow as options of the source."""
    if start.startswith("ts:"):
        return {"startingTimestamp": str(time_ms(start[3:]))}
    options = {"startingOffsets": start}
    if start.startswith("table:") and pipeline.lake is not None:
        options |= pipeline.lake.source_options()
    return options


def time_ms(text: str) -> int:
    """RFC 3339 or epoch milliseconds."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a time", fix="write 2026-01-31T08:00:00Z or milliseconds since 1970"
        ) from None
    return (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def parse_progress(progress: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(progress.json if hasattr(progress, "json") else progress)
    return parsed

"""Where a flow's rows go. Each sink takes a batch once: it keeps (query, batch) with it, and passes a repeat over.

| topic | staged and committed by the broker, see `mainstem_pipeline.sink`; `alerts/{device}` fills in columns |
| table | Parquet files made by tasks, committed to Iceberg with the batch's id in the snapshot |
| parquet | a folder per batch, written over when the batch is run again |
| console | shown |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.model.counted import counted
from mainstem.model.errors import ConfigError, MainstemError
from mainstem_pipeline.lake.catalog import LakeOptions, identifier, open_catalog
from mainstem_pipeline.lake.commits import Committer, ensure_table
from mainstem_pipeline.lake.data_files import SCHEMA, told, unpacked
from mainstem_pipeline.lake.merge import GONE, VALID_FROM, VALID_TO, Merge, Merging
from mainstem_pipeline.options import Given
from mainstem_pipeline.pipeline.failures import SinkFailed, is_transient, reason_of
from mainstem_pipeline.pipeline.model import COLUMN, Sink, partition_transform
from mainstem_pipeline.sink import WriteOptions, write_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

FILE_BYTES = 128 << 20
TWICE = "a batch has two rows of one key and order_by does not say which is newer:"
TOPIC_COLUMNS = {"key", "value", "topic", "partition", "headers", "timestamp"}


@dataclass(frozen=True, slots=True)
class BatchOf:
    """Which batch is written: Spark's id of the query, of its run, and of the batch."""

    query: str
    run: str
    batch: int


class RowsRefused(MainstemError):
    """Some of a batch's rows are none that the sink takes; nothing of it was written."""

    code = "MS-7009"


class Sinks:
    def __init__(self, broker: Mapping[str, str], lake: LakeOptions | None, show: Callable[[str], None]) -> None:
        self._broker, self._lake, self._show = broker, lake, show
        self._tables: dict[str, str] = {}

    def write(self, sink: Sink, frame: DataFrame, batch: BatchOf) -> None:
        """Hand the batch to the sink; what goes wrong is told as the sink's failure."""
        try:
            self.take(sink, meant(sink, frame), batch)
        except MainstemError:
            raise
        except Exception as error:
            if is_transient(error):
                raise
            if TWICE in str(error):
                told = re.search(rf"{TWICE}[^\n\]']*", str(error))
                fix = "order_by: COLUMN says which one is newer"
                raise SinkFailed(f"{sink.kind} {sink.target}: {told[0] if told else TWICE}", fix=fix) from error
            if "RowRefused: " in str(error):
                raise RowsRefused(reason_of(str(error))) from error
            raise SinkFailed(f"{sink.kind} {sink.target}: {reason_of(str(error))}") from error

    def take(self, sink: Sink, rows: DataFrame, batch: BatchOf) -> None:
        match sink.kind:
            case "topic":
                self._to_topic(sink, rows, batch)
            case "table":
                self._to_table(sink, rows, batch)
            case "parquet":
                self._to_parquet(sink, rows, batch)
            case _:
                self._to_console(rows, batch)

    def wanted(self, sink: Sink, frame: DataFrame) -> DataFrame:
        """What the sink would have Spark compute for these rows, without writing it."""
        rows = meant(sink, frame)
        return topic_rows(rows, sink) if sink.kind == "topic" else rows

    def last_batch(self, sink: Sink, query: str) -> int:
        """The last batch of the query that the sink has, -1 for none."""
        if sink.kind == "topic":
            client = Given(self._broker, ()).connection().client()
            try:
                return int(client.get("/v1/stage/last", query=query, sink=sink.name)["batch"])
            finally:
                client.close()
        if sink.kind == "table" and self._lake is not None:
            try:
                return Committer(open_catalog(self._lake), sink.target, f"{query}.{sink.name}").committed()
            except _not_there():
                return -1
        whole = [one.parent.name for one in Path(sink.target).glob(f"batch={query[:8]}-*/_SUCCESS")]
        return max((int(name.rpartition("-")[2]) for name in whole), default=-1)

    def check(self, sink: Sink, frame: DataFrame) -> None:
        """Whether the sink can take such rows, over none of them: what it names must be there."""
        rows = meant(sink, frame)
        if sink.kind == "topic":
            topic_rows(rows, sink)
        elif sink.kind == "table":
            self._check_table(sink, rows)
        elif sink.kind == "parquet":
            rows.select(*sink.partition_by)

    def _check_table(self, sink: Sink, frame: DataFrame) -> None:
        from pyiceberg.exceptions import NoSuchTableError
        from pyspark.sql.pandas.types import to_arrow_schema

        assert self._lake is not None, "checked with the file"
        arrow = _versioned(to_arrow_schema(frame.schema, timezone="UTC"), sink)
        schema = _iceberg_schema(arrow)
        _spec(arrow, sink.partition_by)
        if sink.merge is not None:
            last_of_each_key(frame, sink.merge)
        try:
            table = open_catalog(self._lake).load_table(identifier(sink.target))
        except NoSuchTableError:
            return
        _widened(table.update_schema(), sink, schema)

    # -- topics

    def _to_topic(self, sink: Sink, frame: DataFrame, batch: BatchOf) -> None:
        rows = topic_rows(frame, sink)
        options = self._topic_options(sink, rows, batch)
        rows.write.format("mainstem").mode("append").options(**options).save()

    def _topic_options(self, sink: Sink, rows: DataFrame, batch: BatchOf) -> dict[str, str]:
        options = {
            **self._broker,
            "query": batch.query,
            "run": batch.run,
            "batch": str(batch.batch),
            "sink": sink.name,
            **{name: value for name, value in sink.options.items() if name != "where"},
        }
        return options if "topic" in rows.columns else {**options, "topic": sink.target}

    def refused(self, sink: Sink, frame: DataFrame, batch: BatchOf) -> DataFrame:
        """The rows (`row`) that a sink was given, each with the reason why it cannot take it (`reason`), if any."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType, StructType

        rows = meant(sink, frame)
        if sink.merge is not None:
            nulls = [F.when(F.col(f"`{name}`").isNull(), f"key column {name} is null") for name in sink.merge.key]
            whole = F.struct(*(F.col(f"`{name}`") for name in rows.columns)).alias("row")
            return rows.select(whole, F.coalesce(*nulls).alias("reason"))
        records = topic_rows(rows, sink)
        options = write_options(self._topic_options(sink, records, batch), records.schema)
        whole = F.struct(*(F.col(f"`{name}`") for name in rows.columns)).alias("row")
        both = rows.select(whole, F.struct(*topic_columns(rows, sink)).alias("record"))
        out = StructType().add("row", both.schema["row"].dataType).add("reason", StringType())
        return both.mapInArrow(refusals(options), out)

    # -- tables

    def _to_table(self, sink: Sink, frame: DataFrame, batch: BatchOf) -> None:
        assert self._lake is not None, "checked with the file"
        catalog = open_catalog(self._lake)
        committer = Committer(catalog, sink.target, f"{batch.query}.{sink.name}")
        metadata = self._table(sink, frame)
        if committer.committed() >= batch.batch:
            return
        if sink.merge is not None:
            self._merge(sink.merge, frame, committer, batch, f"{batch.query}.{sink.name}")
            return
        writer = table_writer(metadata, self._lake.file_properties())
        files = unpacked(frame.mapInArrow(writer, SCHEMA).collect())
        if files:
            committer.commit(batch.batch, files)

    def _merge(self, merge: Merge, frame: DataFrame, committer: Committer, batch: BatchOf, query: str) -> None:
        assert self._lake is not None
        rows = last_of_each_key(frame, merge).toArrow()
        if not rows.num_rows:
            return
        for name in merge.key:
            if rows[name].null_count:
                raise RowsRefused(f"key column {name} is null")
        Merging(frame.sparkSession, committer, self._lake.file_properties(), merge).run(query, batch.batch, rows)

    def _table(self, sink: Sink, frame: DataFrame) -> str:
        """The table's metadata file, made or widened for the frame's columns."""
        from pyspark.sql.pandas.types import to_arrow_schema

        assert self._lake is not None
        schema = frame.schema.json()
        known = self._tables.get(sink.name)
        catalog = open_catalog(self._lake)
        arrow = _versioned(to_arrow_schema(frame.schema, timezone="UTC"), sink)
        table = ensure_table(catalog, sink.target, _iceberg_schema(arrow), _spec(arrow, sink.partition_by))
        if known != schema:
            with table.update_schema() as update:
                _widened(update, sink, _iceberg_schema(arrow))
            self._tables[sink.name] = schema
            table = catalog.load_table(table.name())
        return table.metadata_location

    # -- files and the terminal

    @staticmethod
    def _to_parquet(sink: Sink, frame: DataFrame, batch: BatchOf) -> None:
        target = f"{sink.target}/batch={batch.query[:8]}-{batch.batch:012d}"
        writer = frame.write.mode("overwrite")
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        writer.parquet(target)

    def _to_console(self, frame: DataFrame, batch: BatchOf) -> None:
        rows = frame.limit(20).collect()
        self._show(f"batch {batch.batch}: {counted(len(rows), 'row')}" + (" or more" if len(rows) == 20 else ""))
        for row in rows:
            self._show("  " + "  ".join(f"{name}={value}" for name, value in row.asDict().items()))


def meant(sink: Sink, frame: DataFrame) -> DataFrame:
    """The rows that the sink's condition means."""
    where = sink.options.get("where")
    return frame.where(where) if where else frame


def _not_there() -> tuple[type[Exception], ...]:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    return NoSuchTableError, NoSuchNamespaceError


def topic_rows(frame: DataFrame, sink: Sink) -> DataFrame:
    return frame.select(*topic_columns(frame, sink))


def topic_columns(frame: DataFrame, sink: Sink) -> list[Column]:
    """Rows as the topic sink wants them: as they are if they have its columns only, else all of them as JSON."""
    from pyspark.sql import functions as F

    names = set(frame.columns)
    is_ready = "value" in names and names <= TOPIC_COLUMNS and not sink.value and not sink.key
    columns: list[Column] = []
    if is_ready:
        columns = [F.col(name) for name in frame.columns if name != "topic"]
    else:
        value = (
            F.expr(sink.value) if sink.value else F.to_json(F.struct(*(F.col(f"`{name}`") for name in frame.columns)))
        )
        columns = [value.alias("value")]
        if sink.key:
            columns.append(F.expr(sink.key).cast("string").alias("key"))
    topic = templated(sink.target)
    if topic is not None:
        columns.append(topic.alias("topic"))
    elif is_ready and "topic" in names:
        columns.append(F.col("topic"))
    return columns


def refusals(options: WriteOptions) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: rows and the records they would be in, the rows and why they cannot be out."""

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from mainstem_pipeline.stager import Stager

        stager = Stager(options, options.query, options.run, options.batch or 0, 0, 0)
        try:
            for batch in batches:
                records = pa.RecordBatch.from_struct_array(batch.column("record"))
                reasons = pa.array(stager.refusals(records), pa.string())
                yield pa.RecordBatch.from_arrays([batch.column("row"), reasons], names=["row", "reason"])
        finally:
            stager.close()

    return check


def templated(target: str) -> Column | None:
    """`alerts/{device}` as an expression; None if there is nothing to fill in."""
    from pyspark.sql import functions as F

    parts = COLUMN.split(target)
    if len(parts) == 1:
        return None
    return F.concat(*(F.expr(part).cast("string") if index % 2 else F.lit(part) for index, part in enumerate(parts)))


def table_writer(
    metadata: str, properties: Mapping[str, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: rows in, what the data files they became are out."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyiceberg.io.pyarrow import _dataframe_to_data_files
        from pyiceberg.table import StaticTable

        table = StaticTable.from_metadata(metadata, dict(properties))

        def files(held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows = pa.Table.from_batches(held)
            yield from told(_dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io))

        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            if batch.num_rows:
                held.append(batch)
                size += batch.nbytes
            if size >= FILE_BYTES:
                yield from files(held)
                held, size = [], 0
        if held:
            yield from files(held)

    return write


def last_of_each_key(frame: DataFrame, merge: Merge) -> DataFrame:
    """One row of each key, the last by `order_by`, with whether it deletes; without an order two of a key are a mistake."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    gone = F.coalesce(F.expr(merge.delete_where), F.lit(False)) if merge.delete_where else F.lit(False)
    marked = frame.withColumn(GONE, gone)
    keys = [F.col(f"`{name}`") for name in merge.key]
    if merge.order_by:
        newest = Window.partitionBy(*keys).orderBy(F.col(f"`{merge.order_by}`").desc_nulls_last())
        return marked.withColumn("_newest", F.row_number().over(newest)).where("_newest = 1").drop("_newest")
    count = F.count(F.lit(1)).over(Window.partitionBy(*keys))
    told = F.concat(
        F.lit(f"{TWICE} {', '.join(merge.key)} = "), F.concat_ws(", ", *(one.cast("string") for one in keys))
    )
    check = F.when(count > 1, F.raise_error(told).cast("boolean")).otherwise(F.col(GONE))
    return marked.withColumn(GONE, check)


def _versioned(arrow: pa.Schema, sink: Sink) -> pa.Schema:
    """With `scd: 2` the table has columns that say from when to when a row was valid."""
    import pyarrow as pa

    if sink.merge is None or sink.merge.scd != 2:
        return arrow
    kind = pa.timestamp("us", tz="UTC")
    return arrow.append(pa.field(VALID_FROM, kind)).append(pa.field(VALID_TO, kind))


def _iceberg_schema(arrow: pa.Schema) -> Any:
    """Iceberg's schema with ids counted up, as a catalog assigns them."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids

    for field in arrow:
        try:
            _pyarrow_to_schema_without_ids(arrow.empty_table().select([field.name]).schema)
        except Exception as error:
            raise ConfigError(
                f"column {field.name} of type {field.type} cannot be in a table: {error}",
                fix=f"cast it in the flow's SQL: cast({field.name} as string) as {field.name}",
            ) from error
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(arrow))


def _widened(update: Any, sink: Sink, schema: Any) -> None:
    """The table's schema with the rows' columns; ConfigError if they have other types than the table's."""
    from pyiceberg.exceptions import ValidationError

    try:
        update.union_by_name(schema)
    except ValidationError as error:
        raise ConfigError(
            f"table {sink.target} is there with another schema: {error}",
            fix="cast the column to the table's type in the flow's SQL, or write to a table of another name",
        ) from None


def _spec(arrow: pa.Schema, columns: tuple[str, ...]) -> Any:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    schema = _iceberg_schema(arrow)
    fields = []
    for index, text in enumerate(columns):
        transform, name = partition_transform(text)
        if name not in schema.column_names:
            raise ConfigError(
                f"partition_by {text!r}: no such column",
                fix=f"day(column), bucket(16, column) or one of {', '.join(schema.column_names)}",
            )
        source = schema.find_field(name).field_id
        label = name if transform == "identity" else f"{name}_{transform.partition('[')[0]}"
        fields.append(
            PartitionField(source_id=source, field_id=1000 + index, transform=parse_transform(transform), name=label)
        )
    return PartitionSpec(*fields)

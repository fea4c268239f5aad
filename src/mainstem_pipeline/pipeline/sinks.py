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
from typing import TYPE_CHECKING, Any

from mainstem.model.counted import counted
from mainstem.model.errors import ConfigError, MainstemError
from mainstem_pipeline.lake.catalog import LakeOptions, identifier, open_catalog
from mainstem_pipeline.lake.commits import Committer, ensure_table
from mainstem_pipeline.pipeline.failures import SinkFailed, is_transient, reason_of
from mainstem_pipeline.pipeline.model import Sink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

FILE_BYTES = 128 << 20
TOPIC_COLUMNS = {"key", "value", "topic", "partition", "headers", "timestamp"}
_COLUMN = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class BatchOf:
    """Which batch is written: Spark's id of the query, of its run, and of the batch."""

    query: str
    run: str
    batch: int


class Sinks:
    def __init__(self, broker: Mapping[str, str], lake: LakeOptions | None, show: Callable[[str], None]) -> None:
        self._broker, self._lake, self._show = broker, lake, show
        self._tables: dict[str, str] = {}

    def write(self, sink: Sink, frame: DataFrame, batch: BatchOf) -> None:
        """Hand the batch to the sink; what goes wrong is told as the sink's failure."""
        try:
            where = sink.options.get("where")
            rows = frame.where(where) if where else frame
            match sink.kind:
                case "topic":
                    self._to_topic(sink, rows, batch)
                case "table":
                    self._to_table(sink, rows, batch)
                case "parquet":
                    self._to_parquet(sink, rows, batch)
                case _:
                    self._to_console(rows, batch)
        except MainstemError:
            raise
        except Exception as error:
            if is_transient(error):
                raise
            raise SinkFailed(f"{sink.kind} {sink.target}: {reason_of(str(error))}") from error

    def check(self, sink: Sink, frame: DataFrame) -> None:
        """Whether the sink can take such rows, over none of them: what it names must be there."""
        where = sink.options.get("where")
        rows = frame.where(where) if where else frame
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
        arrow = to_arrow_schema(frame.schema, timezone="UTC")
        schema = _iceberg_schema(arrow)
        _spec(arrow, sink.partition_by)
        try:
            table = open_catalog(self._lake).load_table(identifier(sink.target))
        except NoSuchTableError:
            return
        _widened(table.update_schema(), sink, schema)

    # -- topics

    def _to_topic(self, sink: Sink, frame: DataFrame, batch: BatchOf) -> None:
        options = {
            **self._broker,
            "query": batch.query,
            "run": batch.run,
            "batch": str(batch.batch),
            "sink": sink.name,
            **{name: value for name, value in sink.options.items() if name != "where"},
        }
        rows = topic_rows(frame, sink)
        if "topic" not in rows.columns:
            options["topic"] = sink.target
        rows.write.format("mainstem").mode("append").options(**options).save()

    # -- tables

    def _to_table(self, sink: Sink, frame: DataFrame, batch: BatchOf) -> None:
        assert self._lake is not None, "checked with the file"
        catalog = open_catalog(self._lake)
        committer = Committer(catalog, sink.target, f"{batch.query}.{sink.name}")
        metadata = self._table(sink, frame)
        if committer.committed() >= batch.batch:
            return
        writer = table_writer(metadata, self._lake.file_properties())
        files = [row["path"] for row in frame.mapInArrow(writer, "path string").collect()]
        if files:
            committer.commit(batch.batch, files)

    def _table(self, sink: Sink, frame: DataFrame) -> str:
        """The table's metadata file, made or widened for the frame's columns."""
        from pyspark.sql.pandas.types import to_arrow_schema

        assert self._lake is not None
        schema = frame.schema.json()
        known = self._tables.get(sink.name)
        catalog = open_catalog(self._lake)
        arrow = to_arrow_schema(frame.schema, timezone="UTC")
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


def topic_rows(frame: DataFrame, sink: Sink) -> DataFrame:
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
    return frame.select(*columns)


def templated(target: str) -> Column | None:
    """`alerts/{device}` as an expression; None if there is nothing to fill in."""
    from pyspark.sql import functions as F

    parts = _COLUMN.split(target)
    if len(parts) == 1:
        return None
    return F.concat(*(F.expr(part).cast("string") if index % 2 else F.lit(part) for index, part in enumerate(parts)))


def table_writer(
    metadata: str, properties: Mapping[str, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: rows in, the names of the data files they became out."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyiceberg.io.pyarrow import _dataframe_to_data_files
        from pyiceberg.table import StaticTable

        table = StaticTable.from_metadata(metadata, dict(properties))

        def files(held: list[pa.RecordBatch]) -> pa.RecordBatch:
            rows = pa.Table.from_batches(held)
            made = _dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io)
            return pa.RecordBatch.from_arrays([pa.array([one.file_path for one in made], pa.string())], names=["path"])

        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            if batch.num_rows:
                held.append(batch)
                size += batch.nbytes
            if size >= FILE_BYTES:
                yield files(held)
                held, size = [], 0
        if held:
            yield files(held)

    return write


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


_TRANSFORM = re.compile(r"(day|hour|month|year|identity)\((\w+)\)|(\w+)")


def _spec(arrow: pa.Schema, columns: tuple[str, ...]) -> Any:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    schema = _iceberg_schema(arrow)
    fields = []
    for index, text in enumerate(columns):
        found = _TRANSFORM.fullmatch(text.strip())
        name = (found[2] or found[3]) if found is not None else ""
        if found is None or name not in schema.column_names:
            raise ConfigError(
                f"partition_by {text!r}: no such column or transform",
                fix=f"day(column), hour(column), month(column) or one of {', '.join(schema.column_names)}",
            )
        transform = found[1] or "identity"
        source = schema.find_field(name).field_id
        label = name if transform == "identity" else f"{name}_{transform}"
        fields.append(
            PartitionField(source_id=source, field_id=1000 + index, transform=parse_transform(transform), name=label)
        )
    return PartitionSpec(*fields)

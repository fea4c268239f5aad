"""Tables to join with, as they are when a batch is planned.

A flow without state asks for them in every batch. In a flow with state the join is part of the streaming query, and Spark
looks a table of files up once, when the query is made. There the tables are read by a source of ours (`mainstem_side`):
Spark asks it for its partitions whenever a batch is planned, so each batch has the table's newest snapshot, or the files as
they are. Text files come as lines and are parsed by Spark, with the same rules as its own reader.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from mainstem.model.errors import NotFound
from mainstem_pipeline.lake.catalog import load_table, open_catalog
from mainstem_pipeline.lake.stream import DataFileRows, TableSource, read_data_file, table_options
from mainstem_pipeline.pipeline.decoding import REASON, SOURCE_COLUMNS, decoded, inferred_schema
from mainstem_pipeline.pipeline.model import Pipeline, SideTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from mainstem_pipeline.lake.catalog import LakeOptions

LINES_BYTES = 4 << 20  # of text in one batch of rows


def side_table(session: SparkSession, pipeline: Pipeline, table: SideTable, *, live: bool = False) -> DataFrame:
    """A table to join with, as it is now; with `live`, as it is whenever a batch is planned."""
    match table.kind:
        case "table":
            assert pipeline.lake is not None
            if live:
                session.dataSource.register(SideSource)
                return session.read.format("mainstem_side").options(**table_options(pipeline.lake, table.target)).load()
            from mainstem_pipeline.lake.tables import read_table

            return read_table(session, pipeline.lake, table.target)
        case "topic":
            return _of_topic(session, pipeline, table)
    frame = _of_files(session, table)
    return _live_files(session, table, frame) if live and "://" not in table.target else frame


def is_frozen(table: SideTable) -> bool:
    """Whether Spark has looked the files up when the query was made, and must be told to look again."""
    return table.kind not in ("table", "topic") and "://" in table.target


def _of_files(session: SparkSession, table: SideTable) -> DataFrame:
    reader = session.read
    if table.kind == "csv":
        reader = reader.option("header", "true")
        return (reader.schema(table.schema) if table.schema else reader.option("inferSchema", "true")).csv(table.target)
    if table.kind == "json":
        return (reader.schema(table.schema) if table.schema else reader).json(table.target)
    return reader.parquet(table.target)


def _live_files(session: SparkSession, table: SideTable, frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    session.dataSource.register(SideSource)
    reader = session.read.format("mainstem_side").option("kind", table.kind).option("path", table.target)
    if table.kind == "parquet":
        return reader.schema(frame.schema).load()
    ddl = ", ".join(f"`{one.name}` {one.dataType.simpleString()}" for one in frame.schema.fields)
    parse = F.from_csv if table.kind == "csv" else F.from_json
    return reader.schema("line string").load().select(parse(F.col("line"), ddl, {}).alias("row")).select("row.*")


def _of_topic(session: SparkSession, pipeline: Pipeline, table: SideTable) -> DataFrame:
    options = {**pipeline.broker, "subscribe": table.target, "columns": SOURCE_COLUMNS}
    records = session.read.format("mainstem").options(**options).load()
    schema = inferred_schema(records) if table.decode.infer else table.decode.schema
    return decoded(records, table.decode, schema, ()).where(f"{REASON} is null").drop(REASON)


class SideSource(DataSource):
    """A lake table, or files of this machine."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._table = TableSource(options) if "table" in options else None
        self._kind, self._path = options.get("kind", ""), options.get("path", "")

    @classmethod
    def name(cls) -> str:
        return "mainstem_side"

    def schema(self) -> StructType:
        assert self._table is not None, "files come with a schema"
        return self._table.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._table is not None:
            return TableRows(self._table.lake, self._table.table, schema)
        return FileRows(self._kind, self._path, schema)


class TableRows(DataSourceReader):
    def __init__(self, lake: LakeOptions, name: str, schema: StructType) -> None:
        self._lake, self._name, self._schema = lake, name, schema

    def partitions(self) -> Sequence[InputPartition]:
        from mainstem_pipeline.lake.deletes import planned_files

        table = load_table(open_catalog(self._lake), self._name)
        return [DataFileRows(one, table.metadata_location) for one in planned_files(table)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_data_file(self._lake, partition, self._schema)


class OneFile(InputPartition):
    def __init__(self, path: str) -> None:
        super().__init__(None)
        self.path = path


class FileRows(DataSourceReader):
    def __init__(self, kind: str, path: str, schema: StructType) -> None:
        self._kind, self._path, self._schema = kind, path, schema

    def partitions(self) -> Sequence[InputPartition]:
        """The file, or the files of the folder; hidden ones are none, as for Spark."""
        place = Path(self._path)
        found = [place] if place.is_file() else place.rglob("*")
        files = sorted(str(one) for one in found if one.is_file() and not one.name.startswith((".", "_")))
        if not files:
            raise NotFound(f"there is nothing at {self._path} any more", fix="put the side table's files back")
        return [OneFile(one) for one in files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        if not isinstance(partition, OneFile):  # Spark's stand-in where there is nothing to read
            return
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        if self._kind == "parquet":
            yield from _parquet_rows(partition.path, wanted)
        else:
            yield from _lines(partition.path, wanted, skip=self._kind == "csv")


def _parquet_rows(path: str, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    stored = [name for name in wanted.names if name in file.schema_arrow.names]
    for batch in file.iter_batches(columns=stored):
        columns = [
            batch.column(one.name).cast(one.type) if one.name in stored else pa.nulls(batch.num_rows, one.type)
            for one in wanted
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def _lines(path: str, wanted: pa.Schema, *, skip: bool) -> Iterator[pa.RecordBatch]:
    """The lines that are not blank, without the first if that names the columns."""
    import pyarrow as pa

    with Path(path).open(encoding="utf-8", errors="replace") as file:
        if skip:
            next(file, None)
        while lines := file.readlines(LINES_BYTES):
            kept = [text for line in lines if (text := line.rstrip("\r\n")).strip()]
            yield pa.RecordBatch.from_arrays([pa.array(kept, pa.string())], schema=wanted)

"""Reading lake tables with Spark, without Iceberg's jar: plan with pyiceberg, read the Parquet files with Spark.

Files that another engine deleted rows of, tables whose columns have defaults, and tables on S3 (without Hadoop's S3 jar)
are read by tasks with pyarrow instead (`mapInArrow` over the files): Spark's own reader knows neither deletes nor defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import InvalidArgument
from mainstem_pipeline.lake.catalog import LakeOptions, load_table, open_catalog
from mainstem_pipeline.lake.commits import archive_source, next_offsets_of
from mainstem_pipeline.lake.deletes import PlannedFile, planned_files
from mainstem_pipeline.lake.reading import defaults_of, file_batches, fitted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from mainstem_pipeline.options import ReadOptions

READ_TASKS_MAX = 1_000
PLANNED_FIELDS = "path: string, deletes: array<struct<path: string, format: string>>"
FIELD_ID = "parquet.field.id"  # honoured by Spark with spark.sql.parquet.fieldId.read.enabled


def next_offsets(options: ReadOptions, name: str) -> dict[str, dict[str, int]]:
    """Where a table's data ends: the `startingOffsets` of a read that goes on exactly there. `name@snapshot` pins it."""
    lake = LakeOptions(options.warehouse or LakeOptions().warehouse, options.catalog, options.lake_properties)
    name, _, snapshot = name.partition("@")
    table = load_table(open_catalog(lake), name)
    if archive_source(table) is None:
        raise InvalidArgument(
            f"table {name} is not an archive of a topic, so no position in the log belongs to its end",
            fix="name a table made by `mainstem lake archive` or an archive flow",
        )
    return next_offsets_of(table, int(snapshot) if snapshot else None)


def read_table(spark: SparkSession, lake: LakeOptions, name: str) -> DataFrame:
    """The table as it is now."""
    table = load_table(open_catalog(lake), name)
    return frame_of(spark, lake, table, planned_files(table))


def frame_of(spark: SparkSession, lake: LakeOptions, table: Table, files: Sequence[PlannedFile]) -> DataFrame:
    schema = spark_schema(table)
    if not files:
        return spark.createDataFrame([], schema)
    by_spark = lake.is_local and not defaults_of(table.schema())
    whole = [one for one in files if by_spark and not one.deletes]
    cut = [one for one in files if not by_spark or one.deletes]
    frames = []
    if whole:
        frames.append(spark.read.schema(schema).parquet(*[one.path.removeprefix("file://") for one in whole]))
    if cut:
        rows = [((one.path, list(one.deletes)),) for one in cut]
        spread = spark.sparkContext.parallelize(rows, min(len(rows), READ_TASKS_MAX))
        reader = _file_reader(table.metadata_location, lake.file_properties(), schema)
        frames.append(spark.createDataFrame(spread, f"file struct<{PLANNED_FIELDS}>").mapInArrow(reader, schema))
    return frames[0] if len(frames) == 1 else frames[0].union(frames[1])


def spark_schema(table: Table) -> StructType:
    """The table's columns as Spark's, each with its field id: files written under an older name are read by it."""
    from pyspark.sql.types import StructField, StructType

    fields = table.schema().fields
    return StructType(
        [StructField(one.name, _spark_type(one.field_type), True, {FIELD_ID: one.field_id}) for one in fields]
    )


def _spark_type(kind: Any) -> Any:
    from pyiceberg import types as iceberg
    from pyspark.sql import types as spark

    if isinstance(kind, iceberg.ListType):
        return spark.ArrayType(_spark_type(kind.element_type))
    if isinstance(kind, iceberg.MapType):
        return spark.MapType(_spark_type(kind.key_type), _spark_type(kind.value_type))
    if isinstance(kind, iceberg.StructType):
        return spark.StructType(
            [
                spark.StructField(one.name, _spark_type(one.field_type), True, {FIELD_ID: one.field_id})
                for one in kind.fields
            ]
        )
    if isinstance(kind, iceberg.DecimalType):
        return spark.DecimalType(kind.precision, kind.scale)
    simple: dict[Any, Any] = {
        iceberg.BooleanType: spark.BooleanType,
        iceberg.IntegerType: spark.IntegerType,
        iceberg.LongType: spark.LongType,
        iceberg.FloatType: spark.FloatType,
        iceberg.DoubleType: spark.DoubleType,
        iceberg.DateType: spark.DateType,
        iceberg.TimestampType: spark.TimestampNTZType,
        iceberg.TimestamptzType: spark.TimestampType,
        iceberg.StringType: spark.StringType,
        iceberg.BinaryType: spark.BinaryType,
    }
    made = simple.get(type(kind))
    if made is None:
        raise InvalidArgument(f"a column of type {kind} cannot be read with Spark here")
    return made()


def _file_reader(
    metadata: str, properties: Mapping[str, str], schema: StructType
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: planned files in, their rows out."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyiceberg.table import StaticTable
        from pyspark.sql.pandas.types import to_arrow_schema

        table = StaticTable.from_metadata(metadata, dict(properties))
        wanted = to_arrow_schema(schema, timezone="UTC")
        for batch in batches:
            for one in batch.column(0).to_pylist():
                file = PlannedFile(one["path"], pairs_of(one["deletes"]))
                for rows in file_batches(table.io, file, table.schema()):
                    yield fitted(rows, wanted)

    return read


def pairs_of(deletes: Sequence[Mapping[str, str]]) -> tuple[tuple[str, str], ...]:
    """A planned file's deletes, as a task gets them."""
    return tuple((one["path"], one["format"]) for one in deletes)

"""From stored bytes to columns: decoded values beside the record's own facts, and a reason where it did not work.

Decoded columns keep their names; the record's own are `_key`, `_value`, `_topic` (as written), `_levels`, `_partition`,
`_offset`, `_timestamp`, `_origin`, `_headers`. `_reason` is null for a good record.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

from mainstem.model.errors import ConfigError
from mainstem_pipeline.pipeline.model import Decode, Rule
from mainstem_pipeline.pipeline.reasons import GENERAL, avro_reason, misfit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

CORRUPT = "_mainstem_corrupt"
REASON = "_reason"
RECORD_COLUMNS = {
    "_key": "key",
    "_value": "value",
    "_topic": "canonical_topic",
    "_levels": "levels",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_origin": "origin",
    "_headers": "headers",
}
SOURCE_COLUMNS = "key,value,topic,partition,offset,timestamp,headers,canonical_topic,levels,origin"
SAMPLE_ROWS = 1_000
CONFLUENT_HEAD_BYTES = 5
ORDER_DIGITS = 20  # of a position in a database's log, so that texts compare as numbers do


def decoded(records: DataFrame, decode: Decode, schema: str, rules: tuple[Rule, ...]) -> DataFrame:
    """Rows of the source with decoded columns and `_reason`."""
    from pyspark.sql import functions as F

    named = records.select(*(F.col(source).alias(name) for name, source in RECORD_COLUMNS.items()))
    if decode.format == "raw":
        opened = named.withColumn(REASON, F.lit(None).cast("string"))
    elif decode.format == "avro":
        opened = _avro(named, decode, schema)
    elif decode.format == "debezium":
        opened = _debezium(named, decode, schema)
    elif decode.format == "debezium-avro":
        opened = _debezium_avro(named, decode, schema)
    else:
        opened = _parsed(named, decode, schema)
    return (
        opened.withColumn(REASON, F.coalesce(F.col(REASON), *(broken_rule(rule) for rule in rules)))
        if rules
        else opened
    )


def broken_rule(rule: Rule) -> Column:
    from pyspark.sql import functions as F

    holds = F.coalesce(tried(F.expr(rule.check)), F.lit(False))
    return F.when(~holds, F.lit(f"rule {rule.name}: {rule.check}"))


def tried(column: Column) -> Column:
    """The column, null where computing it raises an error: Spark's TryEval, which its SQL has only for some functions."""
    from pyspark import SparkContext
    from pyspark.sql import Column

    context: Any = SparkContext._active_spark_context
    columns = context._jvm.org.apache.spark.sql.classic.ExpressionUtils
    trying = context._jvm.org.apache.spark.sql.catalyst.expressions.TryEval
    return Column(columns.column(trying(columns.expression(column._jc))))


def _parsed(named: DataFrame, decode: Decode, schema: str) -> DataFrame:
    from pyspark.sql import functions as F

    text = F.col("_value").cast("string")
    wanted = struct_of(schema).add(CORRUPT, "string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, **decode.options}
    if decode.format == "csv":
        parsed = F.from_csv(text, _ddl(wanted), options)
    else:
        parsed = F.from_json(text, wanted, options)
    opened = named.withColumn("_parsed", parsed)
    bad = (
        F.when(F.col("_value").isNull(), F.lit("the value is null"))
        .when(F.col("_parsed").isNull(), F.lit(f"{GENERAL}{decode.format}"))
        .when(F.col(f"_parsed.{CORRUPT}").isNotNull(), F.lit(f"{GENERAL}{decode.format} of this schema"))
    )
    names = [field.name for field in wanted.fields if field.name != CORRUPT]
    return opened.withColumn(REASON, bad).select(
        *(F.col(f"_parsed.`{name}`").alias(name) for name in names), *RECORD_COLUMNS, REASON
    )


def _ddl(schema: StructType) -> str:
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema.fields)


def _debezium(named: DataFrame, decode: Decode, schema: str) -> DataFrame:
    """Changes of a database's table in JSON; envelopes come bare or as {schema, payload}."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    row = struct_of(schema)
    source = struct_of("lsn bigint, scn string, file string, pos bigint, ts_ms bigint")
    change = StructType().add("before", row).add("after", row).add("op", "string").add("source", source)
    wanted = StructType([*change.fields]).add("payload", change).add(CORRUPT, "string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, **decode.options}
    opened = named.where("_value is not null").withColumn(
        "_whole", F.from_json(F.col("_value").cast("string"), wanted, options)
    )

    def part(name: str) -> Column:
        return F.coalesce(F.col(f"_whole.payload.{name}"), F.col(f"_whole.{name}"))

    unread = F.when(F.col(f"_whole.{CORRUPT}").isNotNull(), F.lit("the value is not a Debezium change of this schema"))
    return _changes(opened, part, change, unread)


def _debezium_avro(named: DataFrame, decode: Decode, schema: str) -> DataFrame:
    """The same in Avro: `schema` is the envelope's, as Debezium registers it."""
    from pyspark.sql import functions as F

    envelope = struct_of(avro_ddl(json.loads(schema)))
    opened = _avro_opened(named.where("_value is not null"), decode, schema, envelope)

    def part(name: str) -> Column:
        return F.col(f"_parsed.{name}")

    return _changes(opened, part, envelope, F.col(REASON))


def _changes(opened: DataFrame, part: Callable[[str], Column], envelope: StructType, unread: Column) -> DataFrame:
    """The row's columns, `_op` (c, u, r, d) and `_order`, by which changes follow each other.

    A deleted row's columns are those it had. Tombstones are no changes. `unread`: why a value is not an envelope, if so.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    def padded(value: Column) -> Column:
        return F.lpad(value.cast("string"), ORDER_DIGITS, "0")

    row, source = envelope["after"].dataType, envelope["source"].dataType
    assert isinstance(row, StructType)
    assert isinstance(source, StructType)
    known = set(source.fieldNames())
    orders = [padded(part(f"source.{name}")) for name in ("lsn", "scn") if name in known]
    if {"file", "pos"} <= known:
        orders.append(F.concat(part("source.file"), F.lit(":"), padded(part("source.pos"))))
    if "ts_ms" in known:
        orders.append(padded(part("source.ts_ms")))
    order = F.coalesce(*orders) if orders else F.lit(None).cast("string")
    op = part("op")
    bad = F.coalesce(
        unread,
        F.when(op.isNull(), F.lit("the value is not a Debezium change: it has no op"))
        .when(op == "t", F.lit("the source table was truncated (op t), which is not followed"))
        .when(~op.isin("c", "u", "r", "d"), F.concat(F.lit("the value is not a Debezium change: op "), op))
        .when((op == "d") & part("before").isNull(), F.lit("a delete without `before`: set REPLICA IDENTITY FULL"))
        .when((op != "d") & part("after").isNull(), F.lit("a change without `after`")),
    )
    whole = F.when(op == "d", part("before")).otherwise(part("after"))
    made = opened.withColumn("_row", whole).withColumn(REASON, bad)
    columns = (F.col(f"_row.`{field.name}`").alias(field.name) for field in row.fields)
    return made.select(*columns, op.alias("_op"), order.alias("_order"), *RECORD_COLUMNS, REASON)


def struct_of(schema: str) -> StructType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        made = StructType.fromDDL(schema)
        assert isinstance(made, StructType)
        return made
    except PySparkException as error:
        said = next((line for line in str(error).splitlines() if line.strip()), "it is not DDL")
        raise ConfigError(
            f"the schema {schema!r} cannot be read: {said.partition(' SQLSTATE')[0]}",
            fix="write it as Spark does: 'device string, celsius double, at timestamp'",
        ) from None


def inferred_schema(records: DataFrame) -> str:
    """The JSON schema of the first records, as DDL; asked once, then kept with the flow's state."""
    spark = records.sparkSession
    texts = [row[0] for row in records.selectExpr("cast(value as string)").limit(SAMPLE_ROWS).collect() if row[0]]
    if not texts:
        raise ConfigError("there is no record yet to infer a schema from", fix="publish one, or write the schema down")
    schema = spark.read.option("mode", "DROPMALFORMED").json(spark.sparkContext.parallelize(texts, 1)).schema
    return _ddl(schema)


# -- Avro, which Spark's own package does not bring


def _avro(named: DataFrame, decode: Decode, schema: str) -> DataFrame:
    from pyspark.sql import functions as F

    wanted = struct_of(avro_ddl(json.loads(schema)))
    columns = (F.col(f"_parsed.`{field.name}`").alias(field.name) for field in wanted)
    return _avro_opened(named, decode, schema, wanted).select(*columns, *RECORD_COLUMNS, REASON)


def _avro_opened(named: DataFrame, decode: Decode, schema: str, wanted: StructType) -> DataFrame:
    """Records with `_parsed`, and `_reason` where it did not work."""
    from pyspark.sql.types import StringType

    out = type(named.schema)([*named.schema.fields]).add("_parsed", wanted).add(REASON, StringType())
    return named.mapInArrow(_avro_reader(schema, wanted, decode.options), out)


def _avro_reader(
    schema: str, wanted: StructType, options: Mapping[str, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    skip = CONFLUENT_HEAD_BYTES if options.get("wire") == "confluent" else 0

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import fastavro
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_type

        told = json.loads(schema)
        parsed, kind = fastavro.parse_schema(told), to_arrow_type(wanted, timezone="UTC")

        def one(value: bytes | None) -> tuple[Any, str | None]:
            if value is None:
                return None, "the value is null"
            stream = io.BytesIO(value[skip:])
            try:
                found = _plain_times(fastavro.schemaless_reader(stream, parsed), kind)
            except Exception as error:
                return None, avro_reason(value[skip:], told, error)
            left = len(value) - skip - stream.tell()
            if left:
                return None, f"the value is not avro of this schema: {left} bytes are left behind the last field"
            return found, None

        for batch in batches:
            rows = [one(value) for value in batch.column("_value").to_pylist()]
            values, reasons = [value for value, _ in rows], [reason for _, reason in rows]
            try:
                column = pa.array(values, kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                # One of them is not of its column's type: a union's other branch, say.
                unfit = [misfit(value, kind, "") for value in values]
                column = pa.array([v if u is None else None for v, u in zip(values, unfit, strict=True)], kind)
                reasons = [reason or u for reason, u in zip(reasons, unfit, strict=True)]
            arrays = [*batch.columns, column, pa.array(reasons, pa.string())]
            yield pa.RecordBatch.from_arrays(arrays, names=[*batch.schema.names, "_parsed", REASON])

    return read


def _plain_times(value: Any, kind: pa.DataType) -> Any:
    """Times of the day and UUIDs as text, as their columns are."""
    import pyarrow as pa

    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {one.name: _plain_times(value.get(one.name), one.type) for one in kind}
    if isinstance(value, dict) and pa.types.is_map(kind):
        return {name: _plain_times(one, kind.item_type) for name, one in value.items()}
    if isinstance(value, list) and pa.types.is_list(kind):
        return [_plain_times(one, kind.value_type) for one in value]
    if isinstance(value, time | UUID):
        return str(value)
    return value


AVRO_TYPES = {
    "string": "string",
    "bytes": "binary",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "null": "string",
}
AVRO_LOGICAL = {
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "time-millis": "string",
    "time-micros": "string",
    "date": "date",
    "uuid": "string",
}
DECIMAL_DIGITS_MAX = 38


def avro_ddl(schema: dict[str, Any]) -> str:
    """The columns of an Avro record, as DDL."""
    named: dict[str, Any] = {}
    return ", ".join(f"`{one['name']}` {_avro_type(one['type'], named)}" for one in schema.get("fields", []))


def _avro_type(kind: Any, named: dict[str, Any]) -> str:
    """`named`: the types that were defined on the way, which may be used again by name."""
    if isinstance(kind, list):
        return _avro_type(next((one for one in kind if one != "null"), "null"), named)
    if isinstance(kind, str):
        return AVRO_TYPES.get(kind) or named.get(kind.rpartition(".")[2]) or "string"
    if kind.get("logicalType") == "decimal" and 0 < kind.get("precision", 0) <= DECIMAL_DIGITS_MAX:
        found = f"decimal({kind['precision']},{kind.get('scale', 0)})"
    elif kind.get("logicalType") in AVRO_LOGICAL:
        found = AVRO_LOGICAL[kind["logicalType"]]
    else:
        found = _avro_complex(kind, named)
    if "name" in kind:
        named[kind["name"].rpartition(".")[2]] = found
    return found


def _avro_complex(kind: Any, named: dict[str, Any]) -> str:
    match kind.get("type"):
        case "record":
            inner = ", ".join(f"`{one['name']}`: {_avro_type(one['type'], named)}" for one in kind["fields"])
            return f"struct<{inner}>"
        case "array":
            return f"array<{_avro_type(kind['items'], named)}>"
        case "map":
            return f"map<string, {_avro_type(kind['values'], named)}>"
        case "enum":
            return "string"
        case "fixed":
            return "binary"
    return _avro_type(kind.get("type", "string"), named)

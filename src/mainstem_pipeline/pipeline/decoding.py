"""From stored bytes to columns: decoded values beside the record's own facts, and a reason where it did not work.

Decoded columns keep their names; the record's own are `_key`, `_value`, `_topic` (as written), `_levels`, `_partition`,
`_offset`, `_timestamp`, `_origin`, `_headers`. `_reason` is null for a good record.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import ConfigError
from mainstem_pipeline.pipeline.model import Decode, Rule

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
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


def decoded(records: DataFrame, decode: Decode, schema: str, rules: tuple[Rule, ...]) -> DataFrame:
    """Rows of the source with decoded columns and `_reason`."""
    from pyspark.sql import functions as F

    named = records.select(*(F.col(source).alias(name) for name, source in RECORD_COLUMNS.items()))
    if decode.format == "raw":
        opened = named.withColumn(REASON, F.lit(None).cast("string"))
    elif decode.format == "avro":
        opened = _avro(named, decode, schema)
    else:
        opened = _parsed(named, decode, schema)
    return (
        opened.withColumn(REASON, F.coalesce(F.col(REASON), *(broken_rule(rule) for rule in rules)))
        if rules
        else opened
    )


def broken_rule(rule: Rule) -> Column:
    from pyspark.sql import functions as F

    holds = F.coalesce(F.expr(rule.check), F.lit(False))
    return F.when(~holds, F.lit(f"rule {rule.name}: {rule.check}"))


def _parsed(named: DataFrame, decode: Decode, schema: str) -> DataFrame:
    from pyspark.sql import functions as F

    text = F.col("_value").cast("string")
    wanted = _struct(named.sparkSession, schema).add(CORRUPT, "string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, **decode.options}
    if decode.format == "csv":
        parsed = F.from_csv(text, _ddl(wanted), options)
    else:
        parsed = F.from_json(text, wanted, options)
    opened = named.withColumn("_parsed", parsed)
    bad = (
        F.when(F.col("_value").isNull(), F.lit("the value is null"))
        .when(F.col("_parsed").isNull(), F.lit(f"the value is no {decode.format}"))
        .when(F.col(f"_parsed.{CORRUPT}").isNotNull(), F.lit(f"the value is no {decode.format} of this schema"))
    )
    names = [field.name for field in wanted.fields if field.name != CORRUPT]
    return opened.withColumn(REASON, bad).select(
        *(F.col(f"_parsed.`{name}`").alias(name) for name in names), *RECORD_COLUMNS, REASON
    )


def _ddl(schema: StructType) -> str:
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema.fields)


def _struct(spark: SparkSession, schema: str) -> StructType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        made = StructType.fromDDL(schema)
        assert isinstance(made, StructType)
        return made
    except PySparkException as error:
        said = next((line for line in str(error).splitlines() if line.strip()), "it is no DDL")
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

    columns = avro_ddl(json.loads(schema))
    wanted = _struct(named.sparkSession, columns)
    kinds = {field.name: field.dataType.simpleString() for field in named.schema.fields}
    out = ", ".join([*(f"`{name}` {kind}" for name, kind in kinds.items()), "_json string", f"{REASON} string"])
    opened = named.mapInArrow(_avro_reader(schema, decode.options), out)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    parsed = opened.withColumn(
        "_parsed", F.from_json("_json", _struct(named.sparkSession, columns).add(CORRUPT, "string"), options)
    )
    # A union's other branch, say: read by Avro, but not of the column's type.
    unfit = F.when(F.col(f"_parsed.{CORRUPT}").isNotNull(), F.lit("the value does not fit the columns of this schema"))
    return parsed.withColumn(REASON, F.coalesce(F.col(REASON), unfit)).select(
        *(F.col(f"_parsed.`{field.name}`").alias(field.name) for field in wanted), *RECORD_COLUMNS, REASON
    )


def _avro_reader(
    schema: str, options: Mapping[str, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    skip = CONFLUENT_HEAD_BYTES if options.get("wire") == "confluent" else 0

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import fastavro
        import pyarrow as pa

        parsed = fastavro.parse_schema(json.loads(schema))
        for batch in batches:
            texts: list[str | None] = []
            reasons: list[str | None] = []
            for value in batch.column("_value").to_pylist():
                text = reason = None
                try:
                    if value is None:
                        raise ValueError("the value is null")
                    text = json.dumps(fastavro.schemaless_reader(io.BytesIO(value[skip:]), parsed), default=_json_text)
                except Exception as error:
                    reason = f"the value is no avro of this schema: {error or type(error).__name__}"
                texts.append(text)
                reasons.append(reason)
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, pa.array(texts, pa.string()), pa.array(reasons, pa.string())],
                names=[*batch.schema.names, "_json", REASON],
            )

    return read


AVRO_TYPES = {
    "string": "string",
    "bytes": "string",
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


def _json_text(value: Any) -> str:
    """What JSON has no type for: bytes as the text they are, times and decimals as they are written."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def avro_ddl(schema: dict[str, Any]) -> str:
    """The columns of an Avro record, as DDL."""
    return ", ".join(f"`{one['name']}` {_avro_type(one['type'])}" for one in schema.get("fields", []))


def _avro_type(kind: Any) -> str:
    if isinstance(kind, list):
        return _avro_type(next((one for one in kind if one != "null"), "null"))
    if isinstance(kind, str):
        return AVRO_TYPES.get(kind, "string")
    if kind.get("logicalType") in AVRO_LOGICAL:
        return AVRO_LOGICAL[kind["logicalType"]]
    match kind.get("type"):
        case "record":
            inner = ", ".join(f"`{one['name']}`: {_avro_type(one['type'])}" for one in kind["fields"])
            return f"struct<{inner}>"
        case "array":
            return f"array<{_avro_type(kind['items'])}>"
        case "map":
            return f"map<string, {_avro_type(kind['values'])}>"
        case "enum" | "fixed":
            return "string"
    return _avro_type(kind.get("type", "string"))

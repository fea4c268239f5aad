"""`text` and `json` of a row of the log in Spark's SQL, as `mainstem query` has them. Unused, they cost nothing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.accumulators import AccumulatorParam

from mainstem_pipeline.options import Connection
from mainstem_pipeline.serialised import Counts, in_this_process, notices

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession


class _Adding(AccumulatorParam[Counts]):
    def zero(self, value: Counts) -> Counts:
        return Counter()

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:
        value1.update(value2)
        return value1


class JsonColumn:
    """Of one statement: what tasks could not decode is counted for it."""

    def __init__(self, spark: SparkSession, connection: Connection) -> None:
        self._connection = connection
        self._counts: Accumulator[Counts] = spark.sparkContext.accumulator(Counter(), _Adding())

    def added(self, rows: DataFrame) -> DataFrame:
        import pyarrow as pa
        from pyspark.sql import functions as F

        connection, counts = self._connection, self._counts

        def json_of(values: Any) -> Any:
            return _json(values, connection, counts)

        json_of.__annotations__ = {"values": pa.Array, "return": pa.Array}  # by which Spark knows what it is given
        made: Any = F.arrow_udf(json_of, "string")  # type: ignore[attr-defined]
        text = F.expr("try_validate_utf8(cast(value as string))")
        return rows.withColumn("text", text).withColumn("json", made(F.col("value")))

    @property
    def notices(self) -> list[str]:
        return notices(self._counts.value, at_most=True)  # Spark samples before it sorts, and repeats tasks


def _json(values: pa.Array, connection: Connection, counts: Accumulator[Counts]) -> pa.Array:
    """In a task: the JSON of each value, null where it is none."""
    import pyarrow as pa

    serialised = in_this_process(connection)
    found = pa.array([_plain(one) for one in serialised.plain(values).to_pylist()], pa.string())
    counts.add(serialised.taken())
    return found


def _plain(value: bytes | None) -> str | None:
    try:
        msgspec.json.decode(value or b"")
        return value.decode() if value else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

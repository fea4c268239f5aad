"""Records that could not be used: kept with where they came from and why, counted, and limited.

A dead letter is the record's own key, value and headers, with these headers added: `dead-flow`, `dead-reason`,
`dead-topic`, `dead-partition`, `dead-offset`, `dead-timestamp`, `dead-origin`. The table has them as columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mainstem_pipeline.pipeline.decoding import REASON, broken_rule
from mainstem_pipeline.pipeline.failures import BadRecords
from mainstem_pipeline.pipeline.model import Flow, Sink
from mainstem_pipeline.pipeline.sinks import BatchOf, Sinks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

EXAMPLES = 3
EXAMPLE_CHARACTERS_MAX = 120
ADDED = {
    "dead-flow": "flow",
    "dead-reason": "reason",
    "dead-topic": "topic",
    "dead-partition": "partition",
    "dead-offset": "offset",
    "dead-timestamp": "timestamp",
    "dead-origin": "origin",
}


class Quality:
    def __init__(self, flow: Flow, sinks: Sinks) -> None:
        self._flow, self._sinks = flow, sinks
        self.may_be_bad = flow.may_be_bad

    def ruled(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        broken = [broken_rule(rule) for rule in self._flow.rules]
        return rows.withColumn(REASON, F.coalesce(F.col(REASON), *broken)) if broken else rows

    def checked(self, rows: DataFrame) -> int:
        """How many rows are bad; BadRecords, with three of them, if that is more than the flow may have."""
        from pyspark.sql import functions as F

        total, bad = rows.agg(F.count(F.lit(1)), F.count(REASON)).collect()[0]
        self.limit(total, bad, lambda: self.letters(rows.where(f"{REASON} is not null")))
        return int(bad)

    def limit(self, total: int, bad: int, letters: Callable[[], DataFrame]) -> None:
        """BadRecords, with three of them, if there are more than the flow may have."""
        limit = self._flow.dead_letters
        if not bad or total < limit.rows_min or bad / total <= limit.max_ratio:
            return
        examples = "".join(
            f"\n  {row['topic']} {row['partition']}:{row['offset']}: {row['reason']}: {_shown(row['value'])}"
            for row in letters().limit(EXAMPLES).collect()
        )
        raise BadRecords(
            f"flow {self._flow.name}: {bad} of {total} records cannot be used, "
            f"the limit is {limit.max_ratio:.0%}{examples}",
            fix="correct the schema or the rules, or raise dead_letters.max_ratio; nothing of this batch was written",
        )

    def counted(self, rows: DataFrame) -> DataFrame:
        """`bad`: the dead letters of a stream of rows; `total`: in rows of their own, how many rows each task has seen.

        A stream cannot be counted before it is written, so what is needed to know the ratio travels in it. Of a good
        row only a null does.
        """
        from pyspark.sql import functions as F
        from pyspark.sql.types import LongType, StructType

        letters = self.letters(rows)
        bad = F.when(F.col("reason").isNotNull(), F.struct(*map(F.col, letters.columns))).alias("bad")
        out = StructType().add("bad", letters.schema).add("total", LongType())
        return letters.select(bad).mapInArrow(_counting, out)

    def letters(self, bad: DataFrame) -> DataFrame:
        """Bad rows as dead letters."""
        from pyspark.sql import functions as F

        flow = F.lit(self._flow.name).alias("flow")
        reason = F.col(REASON).alias("reason")
        if "_value" not in bad.columns:  # rows of a table have no record behind them: all columns as JSON instead
            value = F.to_json(F.struct(*(name for name in bad.columns if name != REASON))).cast("binary")
            nothing = F.lit(None)
            return bad.select(
                flow,
                reason,
                F.lit(self._flow.source.value).alias("topic"),
                nothing.cast("int").alias("partition"),
                nothing.cast("bigint").alias("offset"),
                F.current_timestamp().alias("timestamp"),
                F.lit("table").alias("origin"),
                nothing.cast("binary").alias("key"),
                value.alias("value"),
                nothing.cast("array<struct<key:string,value:binary>>").alias("headers"),
            )
        own = ("topic", "partition", "offset", "timestamp", "origin", "key", "value", "headers")
        return bad.select(flow, reason, *(F.col(f"_{name}").alias(name) for name in own))

    def keep(self, bad: DataFrame, batch: BatchOf) -> None:
        self.keep_letters(self.letters(bad), batch)

    def keep_letters(self, letters: DataFrame, batch: BatchOf) -> None:
        """To the topic and, if there is one, the table: in the batch they came with."""
        target = self._flow.dead_letters
        self._sinks.write(Sink("topic", target.topic, "dead-letters"), _as_records(letters), batch)
        if target.table:
            self._sinks.write(Sink("table", target.table, "dead-letters-table"), letters, batch)


def _counting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    total, names = 0, ["bad", "total"]
    kind: pa.DataType | None = None
    for batch in batches:
        letters = batch.column(0)
        kind = letters.type
        total += batch.num_rows
        if letters.null_count < batch.num_rows:
            kept = letters.drop_null()
            yield pa.RecordBatch.from_arrays([kept, pa.nulls(len(kept), pa.int64())], names=names)
    if kind is not None:
        yield pa.RecordBatch.from_arrays([pa.nulls(1, kind), pa.array([total], pa.int64())], names=names)


def _as_records(letters: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    added = F.array(
        *(
            F.struct(F.lit(name).alias("key"), F.col(column).cast("string").cast("binary").alias("value"))
            for name, column in ADDED.items()
        )
    )
    none = F.array().cast("array<struct<key:string,value:binary>>")
    headers = F.concat(F.coalesce(F.col("headers"), none), added)
    return letters.select("key", "value", headers.alias("headers"))


def _shown(value: bytes | None) -> str:
    text = "null" if value is None else bytes(value[: EXAMPLE_CHARACTERS_MAX * 2]).decode("utf-8", "backslashreplace")
    return text if len(text) <= EXAMPLE_CHARACTERS_MAX else f"{text[:EXAMPLE_CHARACTERS_MAX]}..."

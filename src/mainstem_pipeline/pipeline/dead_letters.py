"""Records that could not be used: kept with where they came from and why, counted, and limited.

A dead letter is the record's own key, value and headers, with these headers added: `dead-flow`, `dead-reason`,
`dead-topic`, `dead-partition`, `dead-offset`, `dead-timestamp`, `dead-origin`. The table has them as columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mainstem_pipeline.pipeline.decoding import REASON, broken_rule, struct_of
from mainstem_pipeline.pipeline.failures import BadRecords
from mainstem_pipeline.pipeline.model import Flow
from mainstem_pipeline.pipeline.reasons import explained
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


OWN = ("topic", "partition", "offset", "timestamp", "origin", "key", "value", "headers")


class Quality:
    def __init__(self, flow: Flow, sinks: Sinks, schema: Callable[[], str]) -> None:
        """`schema`: what values are decoded by, asked for when there is a bad one."""
        self._flow, self._sinks, self._schema = flow, sinks, schema
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

    def limit(self, total: int, bad: int, letters: Callable[[], DataFrame], *, of: str = "this batch") -> None:
        """BadRecords, with three of them, if there are more than the flow may have; nothing `of` that was written."""
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
            fix=f"correct the schema or the rules, or raise dead_letters.max_ratio; nothing of {of} was written",
        )

    def counted(self, rows: DataFrame) -> DataFrame:
        """`bad`: the dead letters of a stream of rows; `total`: in rows of their own, how many rows each task has seen.

        A stream cannot be counted before it is written, so what is needed to know the ratio travels in it. Of a good
        row only a null does.
        """
        from pyspark.sql import functions as F
        from pyspark.sql.types import LongType, StructType

        letters = self._plain_letters(rows)
        bad = F.when(F.col("reason").isNotNull(), F.struct(*map(F.col, letters.columns))).alias("bad")
        out = StructType().add("bad", letters.schema).add("total", LongType())
        return letters.select(bad).mapInArrow(_counting(self._explained()), out)

    def _explained(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Letters with the field in their reason, where Spark's parser said only that they are malformed."""
        decode = self._flow.decode
        if decode.format not in ("json", "csv") or self._flow.source.kind == "table":
            return lambda letters: letters
        schema = struct_of(self._schema()).jsonValue()
        return partial(explained, form=decode.format, schema=schema, options=dict(decode.options))

    def letters(self, bad: DataFrame) -> DataFrame:
        """Bad rows as dead letters, explained."""
        plain, explain = self._plain_letters(bad), self._explained()

        def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from map(explain, batches)

        return plain.mapInArrow(each, plain.schema)

    def _plain_letters(self, bad: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        flow = F.lit(self._flow.name).alias("flow")
        reason = F.col(REASON).alias("reason")
        if not {f"_{name}" for name in OWN} <= set(
            bad.columns
        ):  # no record is behind them (any more): all columns as JSON instead
            value = F.to_json(F.struct(*(name for name in bad.columns if name != REASON))).cast("binary")
            nothing = F.lit(None)
            return bad.select(
                flow,
                reason,
                F.lit(self._flow.source.value).alias("topic"),
                nothing.cast("int").alias("partition"),
                nothing.cast("bigint").alias("offset"),
                F.current_timestamp().alias("timestamp"),
                F.lit("table" if self._flow.source.kind == "table" else "flow").alias("origin"),
                nothing.cast("binary").alias("key"),
                value.alias("value"),
                nothing.cast("array<struct<key:string,value:binary>>").alias("headers"),
            )
        return bad.select(flow, reason, *(F.col(f"_{name}").alias(name) for name in OWN))

    def keep(self, bad: DataFrame, batch: BatchOf, *, of: str = "") -> None:
        self.keep_letters(self.letters(bad), batch, of=of)

    def keep_letters(self, letters: DataFrame, batch: BatchOf, *, of: str = "") -> None:
        """To the topic and, if there is one, the table: in the batch they came with.

        `of`: the sink that refused them; a batch has them apart from the letters of its decoding.
        """
        for one in self._flow.dead_letters.sinks:
            sink = replace(one, name=f"{one.name}:{of}") if of else one
            self._sinks.write(sink, _as_records(letters) if sink.kind == "topic" else letters, batch)


def _counting(
    explain: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        total, names = 0, ["bad", "total"]
        kind: pa.DataType | None = None
        for batch in batches:
            letters = batch.column(0)
            kind = letters.type
            total += batch.num_rows
            if letters.null_count < batch.num_rows:
                kept = explain(pa.RecordBatch.from_struct_array(letters.drop_null())).to_struct_array().cast(kind)
                yield pa.RecordBatch.from_arrays([kept, pa.nulls(len(kept), pa.int64())], names=names)
        if kind is not None:
            yield pa.RecordBatch.from_arrays([pa.nulls(1, kind), pa.array([total], pa.int64())], names=names)

    return count


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

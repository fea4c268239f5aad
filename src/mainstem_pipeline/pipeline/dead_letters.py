"""Records that could not be used: kept with where they came from and why, counted, and limited.

A dead letter is the record's own key, value and headers, with these headers added: `dead-flow`, `dead-reason`,
`dead-topic`, `dead-partition`, `dead-offset`, `dead-timestamp`, `dead-origin`. The table has them as columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem_pipeline.pipeline.decoding import REASON, broken_rule
from mainstem_pipeline.pipeline.failures import BadRecords
from mainstem_pipeline.pipeline.model import Flow, Sink
from mainstem_pipeline.pipeline.sinks import BatchOf, Sinks

if TYPE_CHECKING:
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
        self.may_be_bad = flow.decode.format != "raw" or bool(flow.rules)

    def ruled(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        broken = [broken_rule(rule) for rule in self._flow.rules]
        return rows.withColumn(REASON, F.coalesce(F.col(REASON), *broken)) if broken else rows

    def checked(self, rows: DataFrame) -> int:
        """How many rows are bad; BadRecords, with three of them, if that is more than the flow may have."""
        from pyspark.sql import functions as F

        total, bad = rows.agg(F.count(F.lit(1)), F.count(REASON)).collect()[0]
        limit = self._flow.dead_letters
        if bad and total >= limit.rows_min and bad / total > limit.max_ratio:
            shown = self.letters(rows.where(f"{REASON} is not null")).limit(EXAMPLES).collect()
            examples = "".join(
                f"\n  {row['topic']} {row['partition']}:{row['offset']}: {row['reason']}: {_shown(row['value'])}"
                for row in shown
            )
            raise BadRecords(
                f"flow {self._flow.name}: {bad} of {total} records cannot be used, "
                f"the limit is {limit.max_ratio:.0%}{examples}",
                fix="correct the schema or the rules, or raise dead_letters.max_ratio; nothing of this batch was written",
            )
        return int(bad)

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

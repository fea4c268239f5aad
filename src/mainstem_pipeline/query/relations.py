"""What a name in SQL means: a lake table, a view, a topic or a filter; and how an archived topic is read whole.

What one archive covers is two parts of one answer: the rows of its table's snapshot, and the log from exactly the offsets
where that snapshot ends. Both ends come from the same snapshot, so each row is there once, whatever is written, archived
or dropped from the log meanwhile. An archive covers its own topic or filter, and every topic, filter and view within it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.codec.arrow_rows import COLUMNS
from mainstem.model.errors import MainstemError, NotFound
from mainstem_pipeline.lake.catalog import LakeOptions
from mainstem_pipeline.lake.commits import SOURCE
from mainstem_pipeline.lake.deletes import planned_files
from mainstem_pipeline.lake.tables import frame_of
from mainstem_pipeline.offsets import pairs
from mainstem_pipeline.options import Given, read_options
from mainstem_pipeline.query.json_column import JsonColumn
from mainstem_pipeline.query.naming import (
    COLD,
    HOT,
    Names,
    Selection,
    column_names,
    may_be_unreadable,
    may_hold,
    normal_source,
)
from mainstem_pipeline.query.predicates import condition_sql, quoted, topic_sql
from mainstem_pipeline.scans import Scan

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession


class Relations(Names):
    """For one statement: every name it uses, as of now."""

    def __init__(
        self, spark: SparkSession, broker: dict[str, str], lake: LakeOptions, *, accept_loss: bool = False
    ) -> None:
        super().__init__(lake)
        self._spark, self._broker, self._accept_loss = spark, broker, accept_loss
        self.json = JsonColumn(spark, Given(broker, ()).connection())

    def frame(self, parts: list[str]) -> DataFrame:
        """The relation a (possibly dotted) name means; NotFound if nothing has it."""
        name = ".".join(parts)
        table = self.table(name) if len(parts) <= 2 else None
        if table is not None:
            return frame_of(self._spark, self._lake, table, planned_files(table))
        client = Given(self._broker, ()).connection().client()
        try:
            asked, is_there = self.selection(client, name)
        finally:
            client.close()
        archived = self.archive_of(asked)
        if archived is None and is_there:
            return self.json.added(self._log(asked.options))
        if archived is None or (not is_there and not may_hold(archived, asked)):
            raise NotFound(f"{name!r} is not a table, view or topic", fix="mainstem topic ls, mainstem lake ls")
        return self.json.added(self._hot_and_cold(archived, asked))

    def _log(self, options: dict[str, str], **more: str) -> DataFrame:
        reader = self._spark.read.format("mainstem").options(**self._broker, **options, **more, columns=HOT)
        return reader.option("failOnDataLoss", str(not self._accept_loss).lower()).load()

    def _hot_and_cold(self, table: Table, asked: Selection) -> DataFrame:
        name, snapshot = ".".join(table.name()), table.current_snapshot()
        source = normal_source(table.properties[SOURCE])
        is_exact = source == asked.source
        # An archive of a filter has a filter's partitions: asked for by filter, the log has the same.
        by_filter = source.startswith("filter:") and "subscribe" in asked.options
        options = {"filter": asked.filter.decode()} if by_filter else asked.options
        if snapshot is None:
            return self._log(options)
        self.archives[name] = snapshot.snapshot_id
        start = {"startingOffsets": f"table:{name}@{snapshot.snapshot_id}", **self._lake.source_options()}
        cold = frame_of(self._spark, self._lake, table, planned_files(table))
        names = column_names(table)
        if names["flags"] is not None and may_be_unreadable(table, names["flags"]):
            cold = cold.where(f"{quoted(names['flags'])} >= 0")  # what cannot be read is not a row of the log either
        if not is_exact:
            assert names["topic"] is not None
            cold = cold.where(topic_sql(asked.filter, names["topic"]))
        kept = cold.selectExpr(*(_cold_column(column, names) for column in COLD))
        if not is_exact and asked.condition:
            kept = kept.where(condition_sql(asked.condition))
        if not self._goes_on({**options, **start}):
            return kept  # without the Python processes that Spark would plan and read nothing with
        return kept.unionByName(self._log(options, **start))

    def _goes_on(self, options: dict[str, str]) -> bool:
        """Whether the log has anything behind the archive's end, as of now."""
        scan = Scan(read_options({**self._broker, **options}, streaming=False))
        try:
            start, end = scan.batch_range()
        except MainstemError:
            return True  # told where the log is read
        finally:
            scan.close()
        return any(start.get(topic, {}).get(partition, 0) < offset for topic, partition, offset in pairs(end))


def _cold_column(column: str, names: dict[str, str | None]) -> str:
    """The column as rows of the log have it, though the table's be renamed, widened or gone."""
    found = names["topic"] if column == "levels" else names[COLD[column]]
    value = "null" if found is None else quoted(found)
    made = f"split({value}, '/')" if column == "levels" and found is not None else value
    return f"cast({made} as {COLUMNS[column].type}) as {column}"

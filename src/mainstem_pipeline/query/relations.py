"""What a name in SQL means: a lake table, a view, a topic or a filter; and how an archived topic is read whole.

An archived topic is two parts of one answer: the rows of its table's snapshot, and the log from exactly the offsets where
that snapshot ends. Both ends come from the same snapshot, so each row is there once, whatever is written or archived
meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.model.errors import NotFound
from mainstem.model.topic_filter import is_pattern
from mainstem_pipeline.lake.catalog import LakeOptions, identifier, open_catalog
from mainstem_pipeline.lake.commits import SOURCE
from mainstem_pipeline.lake.tables import data_paths, frame_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "key,value,topic,partition,offset,timestamp,timestampType,headers,canonical_topic,levels,origin,content_type"
COLD = (
    "key",
    "value",
    "kafka_topic as topic",
    "partition",
    "offset",
    "timestamp",
    "timestamp_type as timestampType",
    "headers",
    "topic as canonical_topic",
    "split(topic, '/') as levels",
    "origin",
    "content_type",
)


class Relations:
    def __init__(self, spark: SparkSession, broker: dict[str, str], lake: LakeOptions) -> None:
        self._spark, self._broker, self._lake = spark, broker, lake
        self._opened: Catalog | None = None

    def _catalog(self) -> Catalog:
        if self._opened is None:
            self._opened = open_catalog(self._lake)
        return self._opened

    def frame(self, parts: list[str]) -> DataFrame:
        """The relation a (possibly dotted) name means; NotFound if nothing has it."""
        name = ".".join(parts)
        table = self._table(name) if len(parts) <= 2 else None
        if table is not None:
            return frame_of(self._spark, self._lake, table, data_paths(table))
        select = self._select(name)
        archived = self._archive_of(select)
        hot = self._spark.read.format("mainstem").options(**self._broker, **select, columns=COLUMNS)
        if archived is None:
            return hot.load()
        return self._hot_and_cold(archived, select)

    def _table(self, name: str) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self._catalog().load_table(identifier(name))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _select(self, name: str) -> dict[str, str]:
        """A filter has wildcards; else it is a view, or a topic in Kafka's or MQTT's spelling."""
        if is_pattern(name.encode()):
            return {"filter": name}
        if self._exists({"kind": "view", "view": name}):
            return {"view": name}
        if self._exists({"kind": "topics", "topics": [name]}):
            return {"subscribe": name}
        raise NotFound(f"{name!r} is no table, view or topic", fix="mainstem topic ls, mainstem lake ls")

    def _exists(self, select: dict[str, object]) -> bool:
        from mainstem_pipeline.options import Given

        client = Given(self._broker, ()).connection().client()
        try:
            client.post("/v1/scan/lanes", {"select": select})
        except NotFound:
            return False
        finally:
            client.close()
        return True

    def _archive_of(self, select: dict[str, str]) -> Table | None:
        """The raw table that archives exactly this."""
        (kind, value), *_ = select.items()
        wanted = f"{kind}:{value}"
        catalog = self._catalog()
        for namespace in catalog.list_namespaces():
            for place in catalog.list_tables(namespace):
                table = catalog.load_table(place)
                if table.properties.get(SOURCE) == wanted:
                    return table
        return None

    def _hot_and_cold(self, table: Table, select: dict[str, str]) -> DataFrame:
        snapshot = table.current_snapshot()
        position = "earliest" if snapshot is None else f"table:{'.'.join(table.name())}@{snapshot.snapshot_id}"
        hot = (
            self._spark.read.format("mainstem")
            .options(**self._broker, **select, columns=COLUMNS, startingOffsets=position)
            .options(warehouse=self._lake.location, catalog=self._lake.catalog)
            .load()
        )
        if snapshot is None:
            return hot
        cold = frame_of(self._spark, self._lake, table, data_paths(table)).selectExpr(*COLD)
        return cold.unionByName(hot)

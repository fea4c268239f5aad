"""What a name in SQL means: a lake table, a view, a topic or a filter; and how an archived topic is read whole.

What one archive covers is two parts of one answer: the rows of its table's snapshot, and the log from exactly the offsets
where that snapshot ends. Both ends come from the same snapshot, so each row is there once, whatever is written, archived
or dropped from the log meanwhile. An archive covers its own topic or filter, and every topic, filter and view within it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mainstem.model.errors import InvalidName, MainstemError, NotFound
from mainstem.model.topic import topic_of_kafka
from mainstem.model.topic_filter import covers, filter_levels, is_pattern, literal_filter
from mainstem_pipeline.lake.catalog import LakeOptions, identifier, open_catalog
from mainstem_pipeline.lake.commits import SOURCE
from mainstem_pipeline.lake.raw import COLUMNS as RAW
from mainstem_pipeline.lake.raw import current_columns
from mainstem_pipeline.lake.tables import data_paths, frame_of
from mainstem_pipeline.offsets import pairs
from mainstem_pipeline.options import Given, read_options
from mainstem_pipeline.query.predicates import condition_sql, quoted, topic_sql
from mainstem_pipeline.rows import COLUMNS
from mainstem_pipeline.scans import Scan

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from mainstem_pipeline.client import BrokerClient

HOT = "key,value,topic,partition,offset,timestamp,timestampType,headers,canonical_topic,levels,origin,content_type"
# The same of a raw table's columns, whatever they are called now.
COLD = {
    "key": "key",
    "value": "value",
    "topic": "kafka_topic",
    "partition": "partition",
    "offset": "offset",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    "headers": "headers",
    "canonical_topic": "topic",
    "levels": "",  # made of the topic
    "origin": "origin",
    "content_type": "content_type",
}


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked for: options of `format("mainstem")`, and as a filter and a condition, where it can be said so."""

    options: dict[str, str]
    filter: bytes
    condition: str = ""

    @property
    def source(self) -> str:
        (kind, value), *_ = self.options.items()
        return normal_source(f"{kind}:{value}")


class Relations:
    """For one statement: every name it uses, as of now."""

    def __init__(
        self, spark: SparkSession, broker: dict[str, str], lake: LakeOptions, *, accept_loss: bool = False
    ) -> None:
        self._spark, self._broker, self._lake = spark, broker, lake
        self._accept_loss = accept_loss
        self._opened: Catalog | None = None
        self.archives: dict[str, int] = {}  # the tables that hot and cold were read of → their snapshot

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
        client = Given(self._broker, ()).connection().client()
        try:
            asked, is_there = self._selection(client, name)
        finally:
            client.close()
        archived = self._archive_of(asked)
        if archived is None and is_there:
            return self._log(asked.options)
        if archived is None or (not is_there and not _has(archived, asked)):
            raise NotFound(f"{name!r} is no table, view or topic", fix="mainstem topic ls, mainstem lake ls")
        return self._hot_and_cold(archived, asked)

    def _table(self, name: str) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self._catalog().load_table(identifier(name))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    @staticmethod
    def _selection(client: BrokerClient, name: str) -> tuple[Selection, bool]:
        """A filter has wildcards; else it is a view, or a topic in Kafka's or MQTT's spelling. And: is it in the log?"""
        if is_pattern(name.encode()):
            return Selection({"filter": name}, name.encode()), True
        try:
            view = client.get(f"/v1/views/{quote(name)}")
            return Selection({"view": name}, view["filter"].encode(), view["where"]), True
        except NotFound:
            pass
        topic = Selection({"subscribe": name}, literal_filter(_canonical(name)))
        try:
            client.post("/v1/scan/lanes", {"select": {"kind": "topics", "topics": [name]}})
        except NotFound:
            return topic, False
        return topic, True

    def _archive_of(self, asked: Selection) -> Table | None:
        """The raw table that archives exactly this, or else one that archives more than this."""
        catalog = self._catalog()
        wider: Table | None = None
        for namespace in catalog.list_namespaces():
            for place in catalog.list_tables(namespace):
                table = catalog.load_table(place)
                source = normal_source(table.properties.get(SOURCE, ""))
                if source == asked.source:
                    return table
                if wider is None and _covers(source, asked):
                    wider = table
        return wider

    def _log(self, options: dict[str, str], **more: str) -> DataFrame:
        reader = self._spark.read.format("mainstem").options(**self._broker, **options, **more, columns=HOT)
        return reader.option("failOnDataLoss", str(not self._accept_loss).lower()).load()

    def _hot_and_cold(self, table: Table, asked: Selection) -> DataFrame:
        name, snapshot = ".".join(table.name()), table.current_snapshot()
        source = normal_source(table.properties[SOURCE])
        is_exact = source == asked.source
        # An archive of a filter has a filter's lanes: asked for by filter, the log has the same.
        by_filter = source.startswith("filter:") and "subscribe" in asked.options
        options = {"filter": asked.filter.decode()} if by_filter else asked.options
        if snapshot is None:
            return self._log(options)
        self.archives[name] = snapshot.snapshot_id
        start = {"startingOffsets": f"table:{name}@{snapshot.snapshot_id}", **self._lake.source_options()}
        cold = frame_of(self._spark, self._lake, table, data_paths(table))
        names = _names(table)
        if names["flags"] is not None and _may_be_unreadable(table, names["flags"]):
            cold = cold.where(f"{quoted(names['flags'])} >= 0")  # what cannot be read is no row of the log either
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

    def moved_on(self) -> bool:
        """Whether an archive that was read has a newer snapshot by now."""
        opened = open_catalog(self._lake)
        for name, snapshot_id in self.archives.items():
            now = opened.load_table(identifier(name)).current_snapshot()
            if now is not None and now.snapshot_id != snapshot_id:
                return True
        return False


def _canonical(name: str) -> bytes:
    if "/" in name:
        return name.encode()
    try:
        return topic_of_kafka(name)
    except InvalidName:
        return name.encode()


def normal_source(source: str) -> str:
    """One spelling for the source of an archive: topics by their canonical names."""
    kind, _, value = source.partition(":")
    if kind != "subscribe":
        return source
    return "subscribe:" + ",".join(sorted(_canonical(one.strip()).decode() for one in value.split(",")))


def _covers(source: str, asked: Selection) -> bool:
    """Whether an archive of that source holds all that is asked for."""
    kind, _, value = source.partition(":")
    if kind == "filter":
        return covers(filter_levels(value.encode()), filter_levels(asked.filter))
    return kind == "subscribe" and "subscribe" in asked.options and asked.source[10:] in value.split(",")


def _has(table: Table, asked: Selection) -> bool:
    """Whether the table may hold the topic, by what its files say of themselves."""
    from pyiceberg.expressions import EqualTo

    equal: Any = EqualTo  # its signature is pydantic's
    name = _names(table)["topic"]
    if name is None or is_pattern(asked.filter):
        return True
    return bool(data_paths(table, equal(name, b"/".join(filter_levels(asked.filter)).decode())))


def _may_be_unreadable(table: Table, flags: str) -> bool:
    """Whether a file may hold a batch that its client made unreadable, by what the files say of themselves."""
    from pyiceberg.expressions import LessThan

    less: Any = LessThan
    return bool(data_paths(table, less(flags, 0)))


def _names(table: Table) -> dict[str, str | None]:
    """A raw table's columns as they are called now."""
    columns = current_columns(table)
    return {name: columns[number][1] if number in columns else None for number, name, _, _ in RAW}


def _cold_column(column: str, names: dict[str, str | None]) -> str:
    """The column as rows of the log have it, though the table's be renamed, widened or gone."""
    found = names["topic"] if column == "levels" else names[COLD[column]]
    value = "null" if found is None else quoted(found)
    made = f"split({value}, '/')" if column == "levels" and found is not None else value
    return f"cast({made} as {COLUMNS[column].type}) as {column}"

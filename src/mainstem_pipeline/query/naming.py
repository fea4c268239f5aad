"""What a name in SQL means, for any engine: a lake table, a view, a topic or a filter; and which archive covers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mainstem.codec.raw_table import COLUMNS as RAW
from mainstem.codec.raw_table import current_columns
from mainstem.model.errors import InvalidName, NotFound
from mainstem.model.topic import topic_of_kafka
from mainstem.model.topic_filter import covers, filter_levels, is_pattern, literal_filter
from mainstem_pipeline.lake.catalog import LakeOptions, identifier, open_catalog
from mainstem_pipeline.lake.commits import SOURCE
from mainstem_pipeline.lake.deletes import planned_files

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

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


class Names:
    """For one statement: every name it uses, as of now."""

    def __init__(self, lake: LakeOptions) -> None:
        self._lake = lake
        self._opened: Catalog | None = None
        self.archives: dict[str, int] = {}  # the tables that hot and cold were read of → their snapshot

    def _catalog(self) -> Catalog:
        if self._opened is None:
            self._opened = open_catalog(self._lake)
        return self._opened

    def table(self, name: str) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self._catalog().load_table(identifier(name))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    @staticmethod
    def selection(client: BrokerClient, name: str) -> tuple[Selection, bool]:
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

    def archive_of(self, asked: Selection) -> Table | None:
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


def may_hold(table: Table, asked: Selection) -> bool:
    """Whether the table may hold the topic, by what its files say of themselves."""
    from pyiceberg.expressions import EqualTo

    equal: Any = EqualTo  # its signature is pydantic's
    name = column_names(table)["topic"]
    if name is None or is_pattern(asked.filter):
        return True
    return bool(planned_files(table, equal(name, b"/".join(filter_levels(asked.filter)).decode())))


def may_be_unreadable(table: Table, flags: str) -> bool:
    """Whether a file may hold a batch that its client made unreadable, by what the files say of themselves."""
    from pyiceberg.expressions import LessThan

    less: Any = LessThan
    return bool(planned_files(table, less(flags, 0)))


def column_names(table: Table) -> dict[str, str | None]:
    """A raw table's columns as they are called now."""
    columns = current_columns(table)
    return {name: columns[number][1] if number in columns else None for number, name, _, _ in RAW}

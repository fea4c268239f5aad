"""Iceberg tables that the broker owns: one for each topic with `tier = "iceberg"`, raw columns, its files the topic's parts.

    <prefix>/iceberg/<table>/data/<object id>.parquet     a part each (`parquet.py`)
    <prefix>/iceberg/<table>/metadata/                    Iceberg's own
    <data>/catalog.sqlite                                 the catalog, unless `tier.catalog` names another

The registry says which files hold which parts; the table says the same to Spark, DuckDB and pyiceberg. A file is in the
table once it is stored and verified, and before the registry counts on it; one that goes leaves the table first. Nobody else
may write: a changed schema, a snapshot of someone else's or a table that was made anew is refused, and told.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mainstem.codec.batch import crc32c
from mainstem.codec.columns import TopicRow
from mainstem.model.errors import ConfigError, MainstemError
from mainstem.model.topic import kafka_name, topic_levels
from mainstem.storage.tier.registry import Registry
from mainstem.storage.tier.store import StoreAway, StoreSettings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from mainstem.codec.raw_table import Columns

CATALOG = "catalog.sqlite"
FOLDER, SUFFIX = "iceberg", ".parquet"
OWNER, OBJECT = "mainstem.broker", "mainstem.object"  # of a snapshot: whose it is, and the file that it added
SNAPSHOTS_MAX, SNAPSHOTS_KEPT = 100, 20
OFFSET_MAX = (1 << 63) - 1
FIX = "undo it, or leave the table to itself: mainstem topic alter TOPIC --set tier=s3"


class TableTarget(NamedTuple):
    """Whose records all of a log's are, and the table that its parts go to."""

    topic: bytes
    partition: int
    table: str

    @property
    def row(self) -> TopicRow:
        levels = [level.decode("utf-8", "replace").encode() for level in topic_levels(self.topic)]
        return kafka_name(self.topic).encode(), self.topic, levels, self.partition, 0, OFFSET_MAX


def check_installed() -> None:
    if find_spec("pyiceberg") is None or find_spec("pyarrow") is None:
        raise ConfigError('tier = "iceberg" needs libraries that are not installed', fix="pip install 'mainstem[lake]'")


def open_catalog(uri: str, store: StoreSettings) -> Catalog:
    """Credentials come from the environment or the machine's role, as for the store."""
    from pyiceberg.catalog import load_catalog

    given = {"s3.endpoint": store.endpoint, "s3.region": store.region}
    files = {name: value for name, value in given.items() if value}
    kind = "rest" if uri.startswith("http") else "sql"
    return load_catalog("mainstem", type=kind, uri=uri, warehouse=f"{store.url.rstrip('/')}/{FOLDER}", **files)


def check_catalog(uri: str, store: StoreSettings) -> int:
    """That it answers: how many namespaces it has. ConfigError where it does not, in one line and without a password."""
    check_installed()
    try:
        return len(open_catalog(uri, store).list_namespaces())
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        place = re.sub(r"//[^/@]*@", "//", uri)
        raise ConfigError(
            f"{place}: {type(error).__name__}: {first}".replace(uri, place),
            fix="tier.catalog: a REST catalog (http://...) or a SQLAlchemy URL; empty is a file here",
        ) from error


def table_name(namespace: str, topic: bytes) -> str:
    """`namespace.table`: letters, digits and `_`, and where that is not the topic's name, what tells it from others."""
    place = "mainstem" if namespace == "/" else f"mainstem_{_plain(namespace.encode())}"
    return f"{place}.{_plain(topic)}"


def _plain(name: bytes) -> str:
    plain = re.sub(rb"[^a-z0-9_]", b"_", name).decode()
    return plain if plain.encode() == name else f"{plain}_{crc32c(name):08x}"


def key_of(table: str, object_id: str) -> str:
    return f"{FOLDER}/{table}/data/{object_id}{SUFFIX}"


def is_rows(key: str) -> bool:
    """Whether an object is a file of a table."""
    return key.endswith(SUFFIX)


class Tables:
    """Any thread may call; everything waits for the catalog and the store."""

    def __init__(self, data: Path, registry: Registry, store: StoreSettings, catalog: str) -> None:
        self._registry, self._store = registry, store
        self._uri = catalog or f"sqlite:///{data / CATALOG}"
        self._lock = threading.RLock()
        self._catalog: Catalog | None = None

    def columns(self, name: str) -> Columns:
        """As files must be written. Makes the table where there is none; ConfigError where it is not ours any more."""
        from mainstem.codec.raw_table import current_columns

        with self._lock, _told(name):
            table = self._table(name)
            self._check(name, table)
            return current_columns(table)

    def add(self, name: str, key: str) -> None:
        """The file is in the table from now on. Again does no harm."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        with self._lock, _told(name):
            table = self._table(name)
            self._check(name, table)
            if any(_summary(one).get(OBJECT) == key for one in table.metadata.snapshots):
                return
            path = f"{self._store.url.rstrip('/')}/{key}"
            logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)  # it warns of columns without statistics
            file = parquet_file_to_data_file(table.io, table.metadata, path)
            properties = {OWNER: self._registry.id, OBJECT: key}
            with table.transaction() as change, change.update_snapshot(properties).merge_append() as update:
                update.append_data_file(file)
            self._expire(table)

    def remove(self, name: str, keys: Collection[str]) -> None:
        """The files are not in the table any more."""
        with self._lock, _told(name):
            if self._registry.fact(_fact(name)) == "":
                return
            table = self._table(name)
            paths = {f"{self._store.url.rstrip('/')}/{key}" for key in keys}
            files = [task.file for task in table.scan().plan_files() if task.file.file_path in paths]
            if files:
                self._check(name, table)
                with (
                    table.transaction() as change,
                    change.update_snapshot({OWNER: self._registry.id}).overwrite() as update,
                ):
                    for file in files:
                        update.delete_data_file(file)

    # -- inside

    def _open(self) -> Catalog:
        if self._catalog is None:
            self._catalog = open_catalog(self._uri, self._store)
        return self._catalog

    def _table(self, name: str) -> Table:
        from pyiceberg.exceptions import NoSuchTableError

        from mainstem.codec.raw_table import FIELDS, assigned_fields, iceberg_schema, sort_order

        catalog, place, known = self._open(), tuple(name.split(".")), self._registry.fact(_fact(name))
        try:
            table = catalog.load_table(place)
        except NoSuchTableError:
            if known:
                raise ConfigError(
                    f"the Iceberg table {name} was dropped by someone; its files still hold the topic's parts",
                    fix="mainstem topic alter TOPIC --set tier=s3",
                ) from None
            catalog.create_namespace_if_not_exists(place[:-1])
            location = f"{self._store.url.rstrip('/')}/{FOLDER}/{name}"
            properties = {OWNER: self._registry.id, "write.metadata.delete-after-commit.enabled": "true"}
            table = catalog.create_table(
                place, iceberg_schema(), location=location, sort_order=sort_order(), properties=properties
            )
            with table.transaction() as change:
                change.set_properties({FIELDS: json.dumps(assigned_fields(table.schema()))})
        if not known:
            self._registry.set_fact(_fact(name), str(table.metadata.table_uuid))
        return table

    def _check(self, name: str, table: Table) -> None:
        if str(table.metadata.table_uuid) != self._registry.fact(_fact(name)):
            raise ConfigError(f"the Iceberg table {name} was dropped and created again by someone", fix=FIX)
        changed = _changed_columns(table)
        if changed:
            raise ConfigError(f"the schema of the Iceberg table {name} was changed: {'; '.join(changed)}", fix=FIX)
        snapshot = table.current_snapshot()
        if snapshot is not None and _summary(snapshot).get(OWNER) != self._registry.id:
            operation = snapshot.summary.operation.value if snapshot.summary is not None else "unknown"
            raise ConfigError(
                f"someone else committed to the Iceberg table {name}: snapshot {snapshot.snapshot_id}, {operation}",
                fix=f"roll it back to snapshot {snapshot.parent_snapshot_id}, or mainstem topic alter TOPIC --set tier=s3",
            )

    def _expire(self, table: Table) -> None:
        if len(table.metadata.snapshots) > SNAPSHOTS_MAX:
            old = sorted(table.metadata.snapshots, key=lambda one: one.timestamp_ms)[:-SNAPSHOTS_KEPT]
            table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in old]).commit()


def _fact(name: str) -> str:
    return f"{FOLDER}.{name}"


def _summary(snapshot: Any) -> dict[str, str]:
    return dict(snapshot.summary.additional_properties) if snapshot.summary is not None else {}


def _changed_columns(table: Table) -> list[str]:
    """In words; empty where it is as we made it."""
    from mainstem.codec.raw_table import COLUMNS, current_columns, iceberg_schema

    found, ours = current_columns(table), iceberg_schema()
    told = [f"column {name!r} was dropped" for number, name, _, _ in COLUMNS if number not in found]
    for number, name, _, _ in COLUMNS:
        if number in found and found[number][1] != name:
            told.append(f"column {name!r} is called {found[number][1]!r} now")
        elif number in found and _kind(table.schema(), found[number][0]) != _kind(ours, number):
            told.append(f"column {name!r} is of another type now")
    known = {found[number][0] for number, _, _, _ in COLUMNS if number in found}
    return told + [f"column {one.name!r} was added" for one in table.schema().fields if one.field_id not in known]


def _kind(schema: Any, field_id: int) -> str:
    return re.sub(r"\d+: ", "", str(schema.find_field(field_id).field_type))  # without the ids inside


@contextmanager
def _told(name: str) -> Iterator[None]:
    """What the libraries raise: the catalog or the store is away, or another commit came first. Tried again."""
    try:
        yield
    except MainstemError:
        raise
    except Exception as error:
        first = str(error).strip().splitlines()
        raise StoreAway(
            f"the Iceberg table {name}: {type(error).__name__}: {first[0] if first else ''}",
            fix="it is tried again; look at the catalog (tier.catalog) and the store: mainstem doctor",
        ) from error

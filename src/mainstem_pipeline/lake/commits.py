"""Commits to lake tables, exactly once: the batch a snapshot holds is written in the snapshot itself.

Every snapshot of ours carries these properties forward, so that expiry loses none of them; a copy is in the table's own
properties, because snapshots that others make do not:

    mainstem.batch.<query>   the last batch of that query in the table; one at or below it is not committed again
    mainstem.next            where the table's data ends, for raw tables (offsets.py draws it)
    mainstem.epoch           of a raw table's only committer; an older one is refused

pyiceberg's own retry is switched off for these tables: a commit that lost a race must look again whether it is still due.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from mainstem.model.errors import ConfigError, MainstemError, Overloaded
from mainstem_pipeline.lake.catalog import identifier
from mainstem_pipeline.offsets import IDS, Offsets, is_another, pairs, without_ids

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.sorting import SortOrder

COMMITS_MAX = 20  # attempts against others' commits
CATALOG_CALLS_MAX = 10
QUERIES_MAX = 100  # whose last batch a table remembers
FORMAT_MAX = 2  # of tables that pyiceberg can write
PREFIX = "mainstem."
NEXT, EPOCH, BATCH = "mainstem.next", "mainstem.epoch", "mainstem.batch."
SOURCE = "mainstem.source"  # of a raw table: what it archives
DECODED_SOURCE = "mainstem.decoded.source"  # of a decoded table without a raw one: what it archives
CARRIED = "mainstem.carried"  # table property: a copy of the newest snapshot's properties
ANCESTORS_MAX = 1_000  # snapshots of others on top of our newest
TABLE_PROPERTIES = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.metrics.default": "truncate(16)",
}


T = TypeVar("T")


class Fenced(MainstemError):
    code = "MS-7003"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a batch of a raw table starts and ends, by topic and partition; a partition that is new has no start."""

    starts: Mapping[str, Mapping[str, int]]
    ends: Mapping[str, Mapping[str, int]]


def ensure_table(
    catalog: Catalog,
    name: str,
    schema: Schema,
    spec: PartitionSpec | None = None,
    properties: Mapping[str, str] | None = None,
    order: SortOrder | None = None,
) -> Table:
    """The table, made if it is not there yet."""
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    place = identifier(name)

    def make() -> Table:
        catalog.create_namespace_if_not_exists(place[:-1])
        return catalog.create_table_if_not_exists(
            place,
            schema=schema,
            partition_spec=spec or UNPARTITIONED_PARTITION_SPEC,
            sort_order=order or UNSORTED_SORT_ORDER,
            properties={**TABLE_PROPERTIES, **(properties or {})},
        )

    return settled(make)


def settled(call: Callable[[], T]) -> T:
    """Call the catalog; again if another flow made the same thing, or held the catalog, at the same moment."""
    from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
    from sqlalchemy.exc import IntegrityError, OperationalError

    for attempt in range(CATALOG_CALLS_MAX):
        try:
            return call()
        except (IntegrityError, OperationalError, NamespaceAlreadyExistsError, TableAlreadyExistsError):
            if attempt + 1 == CATALOG_CALLS_MAX:
                raise
            time.sleep(random.uniform(0.02, 0.1) * (attempt + 1))
    raise AssertionError("unreachable")


def carried(table: Table, snapshot_id: int | None = None) -> dict[str, str]:
    """Our properties of the table's current snapshot, or of the one named.

    Others who commit to the table (Spark's rewrite_data_files, say) do not carry them forward: then the nearest ancestor of
    ours has them, and where all of ours have expired, the table's own copy.
    """
    snapshot = table.current_snapshot() if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    seen = 0
    while snapshot is not None and seen < ANCESTORS_MAX:
        summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        found = {name: value for name, value in summary.items() if name.startswith(PREFIX)}
        if found:
            return found
        seen += 1
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    return dict(json.loads(table.properties.get(CARRIED, "{}")))


def archive_source(table: Table) -> str | None:
    """What an archive's only table holds, raw or decoded; None: it is another kind of table."""
    return table.properties.get(SOURCE, table.properties.get(DECODED_SOURCE))


def check_writable(table: Table) -> None:
    """ConfigError for a table whose format is newer than what can be written here."""
    if table.format_version > FORMAT_MAX:
        name = ".".join(table.name())
        raise ConfigError(
            f"table {name} has format version {table.format_version}, and tables up to version {FORMAT_MAX} can be "
            "written here: another engine has created or raised it",
            fix="it can be read; write to a table of another name, or let the engine that raised it maintain it",
        )


def next_offsets_of(table: Table, snapshot_id: int | None = None) -> Offsets:
    """Where the table's data ends, by topic and partition."""
    return dict(json.loads(carried(table, snapshot_id).get(NEXT, "{}")))


class Committer:
    """Commits one query's batches to one table. With an epoch, it is the only one: a newer one ends it."""

    def __init__(self, catalog: Catalog, name: str, query: str, *, epoch: int | None = None) -> None:
        self._catalog, self._name, self._query = catalog, name, query
        self.epoch = epoch

    def table(self) -> Table:
        return self._catalog.load_table(identifier(self._name))

    def take_over(self) -> int:
        """Be the table's committer from now on, in a higher epoch.

        It is a snapshot without files, because commits are checked against the snapshot they build on: one that an
        older committer is about to make can no longer succeed.
        """

        def claim(table: Table, properties: dict[str, str]) -> bool:
            self.epoch = int(properties.get(EPOCH, "0")) + 1
            properties[EPOCH] = str(self.epoch)
            _append(table, properties, ())
            return True

        self.epoch = None
        self.attempt(claim)
        assert self.epoch is not None
        return self.epoch

    def committed(self) -> int:
        """The query's last batch in the table, -1 for none."""
        return int(carried(self.table()).get(BATCH + self._query, "-1"))

    def commit(self, batch: int, files: Sequence[DataFile], *, progress: Progress | None = None) -> bool:
        """Add the files as batch `batch`; False, and the files removed, if the table holds that batch already."""

        def append(table: Table, properties: dict[str, str]) -> bool:
            if int(properties.get(BATCH + self._query, "-1")) >= batch:
                return False
            note_batch(properties, BATCH + self._query, batch)
            if progress is not None:
                properties[NEXT] = json.dumps(self._moved(json.loads(properties.get(NEXT, "{}")), progress))
            _append(table, properties, files)
            return True

        try:
            done = self.attempt(append)
        except Fenced:
            remove_files(self.table(), [one.file_path for one in files])
            raise
        if not done:
            remove_files(self.table(), [one.file_path for one in files])
        return done

    def _moved(self, ends: Offsets, progress: Progress) -> Offsets:
        """Where the table ends after a batch. One that starts before the table's end would write rows again.

        But those of a topic that was made anew: they are others, at the same offsets of another log.
        """
        anew = {topic for topic in ends if is_another(topic, ends, progress.ends)}
        for topic, partition, end in pairs(progress.ends):
            start = progress.starts.get(topic, {}).get(partition, 0)
            known = ends.setdefault(topic, {}).get(partition, 0)
            if topic in anew or end < start:
                ends[topic][partition] = end
                continue
            if start < known and start < end:
                raise Fenced(
                    f"table {self._name} holds {topic} {partition} up to offset {known}; "
                    f"this archive would write from {start} on again",
                    fix="run one archive of a table at a time; a reset one goes on where the table ends",
                )
            ends[topic][partition] = max(known, end)
        if IDS in progress.ends:
            ends.setdefault(IDS, {}).update(progress.ends[IDS])
        return ends

    def attempt(self, change: Callable[[Table, dict[str, str]], bool]) -> bool:
        """Apply a change to the newest state, again if another commit came first; False if it is not due."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        for attempt in range(COMMITS_MAX):
            table = self.table()
            check_writable(table)
            properties = carried(table)
            self._check_epoch(properties)
            try:
                return change(table, properties)
            except (CommitFailedException, ValidationException):
                time.sleep(random.uniform(0, 0.05 * (attempt + 1)))
        raise Overloaded(
            f"table {self._name}: {COMMITS_MAX} commits in a row lost against others",
            fix="let one flow write a table, or several write less often (trigger: 1m)",
        )

    def _check_epoch(self, properties: dict[str, str]) -> None:
        if self.epoch is not None and int(properties.get(EPOCH, "0")) > self.epoch:
            raise Fenced(
                f"table {self._name} has a newer committer (epoch {properties[EPOCH]}); this one (epoch {self.epoch}) stops",
                fix="run one archive of a table at a time",
            )


def _append(table: Table, properties: dict[str, str], files: Sequence[DataFile]) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({CARRIED: json.dumps(properties)})
        with transaction.update_snapshot(snapshot_properties=properties).merge_append() as update:
            for one in files:
                update.append_data_file(one)


def note_batch(properties: dict[str, str], name: str, batch: int) -> None:
    """The query's batch, last in order; a table remembers the queries that wrote it last."""
    properties.pop(name, None)
    properties[name] = str(batch)
    queries = [one for one in properties if one.startswith(BATCH)]
    for old in queries[:-QUERIES_MAX]:
        del properties[old]


def remove_files(table: Table, paths: Iterable[str]) -> int:
    """Delete files that no snapshot names; one that is gone already is fine."""
    removed = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            table.io.delete(path)
            removed += 1
    return removed


def summary_of(table: Table) -> dict[str, Any]:
    """What `mainstem lake ls` shows of a table."""
    snapshot = table.current_snapshot()
    totals = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary is not None else {}
    return {
        "table": ".".join(table.name()),
        "rows": int(totals.get("total-records", "0")),
        "files": int(totals.get("total-data-files", "0")),
        "bytes": int(totals.get("total-files-size", "0")),
        "snapshots": len(table.metadata.snapshots),
        "ends": without_ids(next_offsets_of(table)),
    }

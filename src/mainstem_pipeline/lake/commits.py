"""Commits to lake tables, exactly once: the batch a snapshot holds is written in the snapshot itself.

Every snapshot of ours carries these properties forward, so that expiry loses none of them:

    mainstem.batch.<query>   the last batch of that query in the table; one at or below it is not committed again
    mainstem.next            {topic: {partition: offset}}: where the table's data ends, for raw tables
    mainstem.epoch           of the committer; an older one is refused

pyiceberg's own retry is switched off for these tables: a commit that lost a race must look again whether it is still due.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import MainstemError, Overloaded
from mainstem_pipeline.lake.catalog import identifier

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

COMMITS_MAX = 20  # attempts against others' commits
FOOTER_THREADS = 8
PREFIX = "mainstem."
NEXT, EPOCH, BATCH = "mainstem.next", "mainstem.epoch", "mainstem.batch."
TABLE_PROPERTIES = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.metrics.default": "truncate(16)",
}


class Fenced(MainstemError):
    code = "MS-7003"


def ensure_table(
    catalog: Catalog,
    name: str,
    schema: Schema,
    spec: PartitionSpec | None = None,
    properties: Mapping[str, str] | None = None,
) -> Table:
    """The table, made if it is not there yet."""
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

    place = identifier(name)
    catalog.create_namespace_if_not_exists(place[:-1])
    return catalog.create_table_if_not_exists(
        place,
        schema=schema,
        partition_spec=spec or UNPARTITIONED_PARTITION_SPEC,
        properties={**TABLE_PROPERTIES, **(properties or {})},
    )


def carried(table: Table, snapshot_id: int | None = None) -> dict[str, str]:
    """Our properties of the table's current snapshot, or of the one named."""
    snapshot = table.current_snapshot() if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    if snapshot is None or snapshot.summary is None:
        return {}
    return {name: value for name, value in snapshot.summary.additional_properties.items() if name.startswith(PREFIX)}


def next_offsets_of(table: Table, snapshot_id: int | None = None) -> dict[str, dict[str, int]]:
    """Where the table's data ends, by topic and partition."""
    return dict(json.loads(carried(table, snapshot_id).get(NEXT, "{}")))


def data_files(table: Table, paths: Sequence[str]) -> list[DataFile]:
    """What manifests say of the files, read from their footers."""
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        return list(pool.map(lambda path: parquet_file_to_data_file(table.io, table.metadata, path), paths))


class Committer:
    """Commits one query's batches to one table."""

    def __init__(self, catalog: Catalog, name: str, query: str, *, epoch: int | None = None) -> None:
        self._catalog, self._name, self._query = catalog, name, query
        self.epoch = epoch

    def table(self) -> Table:
        return self._catalog.load_table(identifier(self._name))

    def take_over(self) -> int:
        """The epoch of a new committer: higher than the one before it."""
        self.epoch = int(carried(self.table()).get(EPOCH, "0")) + 1
        return self.epoch

    def committed(self) -> int:
        """The query's last batch in the table, -1 for none."""
        return int(carried(self.table()).get(BATCH + self._query, "-1"))

    def commit(
        self, batch: int, paths: Sequence[str], *, next_offsets: Mapping[str, Mapping[str, int]] | None = None
    ) -> bool:
        """Add the files as batch `batch`; False, and the files removed, if the table holds that batch already."""

        def append(table: Table, properties: dict[str, str]) -> bool:
            if int(properties.get(BATCH + self._query, "-1")) >= batch:
                return False
            properties[BATCH + self._query] = str(batch)
            if next_offsets is not None:
                ends: dict[str, dict[str, int]] = json.loads(properties.get(NEXT, "{}"))
                for topic, parts in next_offsets.items():
                    ends.setdefault(topic, {}).update(parts)
                properties[NEXT] = json.dumps(ends, sort_keys=True)
            with (
                table.transaction() as transaction,
                transaction.update_snapshot(snapshot_properties=properties).merge_append() as update,
            ):
                for one in data_files(table, paths):
                    update.append_data_file(one)
            return True

        done = self.attempt(append)
        if not done:
            remove_files(self.table(), paths)
        return done

    def attempt(self, change: Callable[[Table, dict[str, str]], bool]) -> bool:
        """Apply a change to the newest state, again if another commit came first; False if it is not due."""
        from pyiceberg.exceptions import CommitFailedException

        for attempt in range(COMMITS_MAX):
            table = self.table()
            properties = carried(table)
            self._check_epoch(properties)
            try:
                return change(table, properties)
            except CommitFailedException:
                time.sleep(random.uniform(0, 0.05 * (attempt + 1)))
        raise Overloaded(
            f"table {self._name}: {COMMITS_MAX} commits in a row lost against others",
            fix="let one flow write a table, or several write less often (trigger: 1m)",
        )

    def _check_epoch(self, properties: dict[str, str]) -> None:
        if self.epoch is None:
            return
        if int(properties.get(EPOCH, "0")) > self.epoch:
            raise Fenced(
                f"table {self._name} has a newer committer (epoch {properties[EPOCH]}); this one (epoch {self.epoch}) stops",
                fix="run one archive of a table at a time",
            )
        properties[EPOCH] = str(self.epoch)


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
        "ends": json.loads(totals.get(NEXT, "{}")),
    }

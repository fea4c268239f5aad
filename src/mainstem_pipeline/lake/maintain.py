"""Keeping tables in shape: small files into large ones in their order, old snapshots away, nobody's files removed.

Compaction joins neighbours only (one partition; in raw tables one log, with no other file's offsets between) and copies
rows as they are, so that offset order stays. It is committed as one `replace` snapshot: readers of appends (streams, the
archive) pass it over.

A snapshot expires once it has not been the current one for the grace time: whoever began to read it then, has had that
long. Files that no snapshot names any more are removed; those that none has named yet, once they are as old as that.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from mainstem_pipeline.lake.commits import SOURCE, Committer, data_files, remove_files
from mainstem_pipeline.lake.raw import (
    LOG_ID,
    OFFSET_ID,
    ROW_GROUP_ROWS,
    current_columns,
    parquet_writer,
)
from mainstem_pipeline.lake.reading import file_batches, written_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

GROUP_FILES_MAX = 1_000
GROUPS_MAX = 100  # of one commit; the next ones follow it

Order = Callable[["DataFile"], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Compacted:
    table: str
    before: int
    after: int
    bytes: int


def bins(files: Sequence[DataFile], order: Order, target_bytes: int) -> list[list[DataFile]]:
    """Runs of neighbours (same place, in order) that together stay near the target; single files are left alone."""
    found: list[list[DataFile]] = []
    size = 0
    last: tuple[Any, ...] | None = None
    for one in sorted(files, key=order):
        place = order(one)[:-1]
        fits = size + one.file_size_in_bytes <= target_bytes and len(found[-1]) < GROUP_FILES_MAX if found else False
        if place != last or not fits:
            found.append([])
            size = 0
        found[-1].append(one)
        size, last = size + one.file_size_in_bytes, place
    return [group for group in found if len(group) > 1]


def order_of(table: Table) -> Order:
    """Partition first; raw tables then by log and offset, others by file path."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import LongType

    is_raw = SOURCE in table.properties
    columns = current_columns(table) if is_raw else {}
    ids = [columns[number][0] for number in (LOG_ID, OFFSET_ID) if number in columns]

    def order(one: DataFile) -> tuple[Any, ...]:
        place = (one.spec_id, str(one.partition))
        if not is_raw:
            return (*place, one.file_path)
        lower = one.lower_bounds or {}
        return (*place, *(from_bytes(LongType(), lower[one]) if one in lower else -1 for one in ids))

    return order


def compact(
    spark: SparkSession, catalog: Catalog, name: str, properties: Mapping[str, str], target_bytes: int
) -> Compacted:
    """Rewrite runs of small files, a Spark task each, and swap them in, some at a time."""
    before = len(_live_files(Committer(catalog, name, "").table()))
    size, groups = 0, GROUPS_MAX
    while groups == GROUPS_MAX:
        groups, done = _compact_some(spark, catalog, name, properties, target_bytes)
        size += done
    return Compacted(name, before, len(_live_files(Committer(catalog, name, "").table())), size)


def _live_files(table: Table) -> dict[str, DataFile]:
    return {task.file.file_path: task.file for task in table.scan().plan_files()}


def _compact_some(
    spark: SparkSession, catalog: Catalog, name: str, properties: Mapping[str, str], target_bytes: int
) -> tuple[int, int]:
    """(runs of files, bytes) that were joined."""
    committer = Committer(catalog, name, "")
    table = committer.table()
    groups = bins(list(_live_files(table).values()), order_of(table), target_bytes)[:GROUPS_MAX]
    if not groups:
        return 0, 0
    rows = [(number, [one.file_path for one in group]) for number, group in enumerate(groups)]
    spread = spark.sparkContext.parallelize(rows, len(rows))  # a task each
    frame = spark.createDataFrame(spread, "number int, paths array<string>")
    joined = frame.mapInArrow(joiner(table.metadata_location, properties), "path string").collect()
    made = [row["path"] for row in joined]
    replaced = {one.file_path for group in groups for one in group}

    def swap(current: Table, carried: dict[str, str]) -> bool:
        now = _live_files(current)
        if not replaced <= set(now):
            return False  # another maintenance was first
        with current.transaction() as transaction:
            update = replace_files(transaction, carried)
            for path in replaced:
                update.delete_data_file(now[path])
            for one in data_files(current, made):
                update.append_data_file(one)
            update.commit()
        return True

    if not committer.attempt(swap):
        remove_files(table, made)
        return 0, 0
    return len(groups), sum(one.file_size_in_bytes for group in groups for one in group)


def replace_files(transaction: Any, properties: dict[str, str]) -> Any:
    """A snapshot of the operation `replace`: other files, the same rows. pyiceberg has no such producer."""
    from pyiceberg.table.snapshots import Operation, Summary
    from pyiceberg.table.update.snapshot import _OverwriteFiles

    class ReplaceFiles(_OverwriteFiles):
        def _summary(self, snapshot_properties: dict[str, str] = {}) -> Summary:  # noqa: B006 - pyiceberg's signature
            told = super()._summary(snapshot_properties)
            return Summary(Operation.REPLACE, **told.additional_properties)

    return ReplaceFiles(
        operation=Operation.OVERWRITE,
        transaction=transaction,
        io=transaction._table.io,
        branch="main",
        snapshot_properties=properties,
    )


def joiner(
    metadata: str, properties: Mapping[str, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: lists of files in, the one file each became out. Rows are copied in order, a batch at a time."""

    def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyiceberg.table import StaticTable

        table = StaticTable.from_metadata(metadata, dict(properties))
        for batch in batches:
            for row in batch.to_pylist():
                yield pa.RecordBatch.from_pydict({"path": [join_files(table, row["paths"])]})

    return join


def join_files(table: Table, paths: Sequence[str]) -> str:
    """A file with all rows of these, under the table's schema as it is now."""
    path = f"{table.location().rstrip('/')}/data/compacted-{uuid.uuid4().hex}.parquet"
    schema = written_schema(table.schema())
    columns = current_columns(table) if SOURCE in table.properties else None
    with table.io.new_output(path).create() as out:
        batches = (rows.cast(schema) for one in paths for rows in file_batches(table.io, one, table.schema()))
        first = next(batches, None)
        with parquet_writer(out, schema, columns, first) as writer:
            for rows in chain([first] if first is not None else [], batches):
                writer.write_batch(rows, row_group_size=ROW_GROUP_ROWS)
    return path


def expire(catalog: Catalog, name: str, keep: int, grace_s: float) -> int:
    """Drop all but the newest snapshots, if another has been current for the grace time. Returns how many went."""
    table = Committer(catalog, name, "").table()
    ordered = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    oldest_ms = (time.time() - grace_s) * 1000
    old = [one.snapshot_id for one, after in pairwise(ordered) if after.timestamp_ms <= oldest_ms]
    old = old[: max(len(ordered) - keep, 0)]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()
    return len(old)


def remove_unreferenced(catalog: Catalog, name: str, grace_s: float) -> int:
    """Delete files below the table's location that no snapshot names and that are older than the grace time."""
    table = Committer(catalog, name, "").table()
    oldest = time.time() - grace_s
    aged = [path for path, modified_s in listed(table) if modified_s <= oldest]
    # What is referenced is read after the files were listed: one that is committed meanwhile is found in it.
    known = referenced(Committer(catalog, name, "").table()) if aged else set()
    return remove_files(table, [path for path in aged if path not in known])


def referenced(table: Table) -> set[str]:
    """Every file that some snapshot, or the metadata itself, names."""
    metadata = table.metadata
    found = {table.metadata_location, *(one.metadata_file for one in metadata.metadata_log)}
    found |= {one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics)}
    manifests = set()
    for snapshot in metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in manifests:
                continue
            manifests.add(manifest.manifest_path)
            found |= {one.data_file.file_path for one in manifest.fetch_manifest_entry(table.io, discard_deleted=True)}
    return {_plain(path) for path in found | manifests}


def _plain(path: str) -> str:
    """A local path however it is written: Java says file:/a, we say file:///a or /a."""
    return "/" + path[5:].lstrip("/") if path.startswith("file:/") else path


def listed(table: Table) -> Iterator[tuple[str, float]]:
    """(path, modification time) of everything below the table's location."""
    from pyarrow.fs import FileSelector, FileType
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, found, place = _plain(table.location()).partition("://")
    if not found:
        scheme, place = "file", scheme
    # Not split as a URL: what follows a # or ? is part of a folder's name, and another table may lie before it.
    system = PyArrowFileIO(table.io.properties).fs_by_scheme(scheme, "" if scheme == "file" else place.split("/", 1)[0])
    prefix = f"{scheme}://" if scheme != "file" else ""
    for one in system.get_file_info(FileSelector(place, recursive=True, allow_not_found=True)):
        if one.type == FileType.File:
            yield prefix + one.path, one.mtime_ns / 1e9

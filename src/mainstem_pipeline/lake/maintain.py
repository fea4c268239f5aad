"""Keeping tables in shape: small files into large ones in their order, old snapshots away, nobody's files removed.

Compaction joins neighbours only (one partition; in raw tables one log, with no other file's offsets between) and copies
rows as they are, so that offset order stays. It is committed as one `replace` snapshot: readers of appends (streams, the
archive) pass it over. Rows that another engine deleted (position deletes) are left out of the new files; if one is deleted
while files are being joined, they are joined again. Delete files that concern no file any more go with them.

A snapshot expires once it has not been the current one for the grace time: whoever began to read it then, has had that
long. Files that no snapshot names any more are removed; those that none has named yet, once they are as old as that.
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from mainstem.codec.raw_table import LOG_ID, OFFSET_ID, current_columns, parquet_writer
from mainstem_pipeline.lake.commits import SOURCE, Committer, check_writable, remove_files
from mainstem_pipeline.lake.data_files import SCHEMA, described, packed, told, unpacked
from mainstem_pipeline.lake.deletes import PlannedFile, planned, planned_tasks
from mainstem_pipeline.lake.raw import ROW_GROUP_ROWS
from mainstem_pipeline.lake.reading import file_batches, written_schema
from mainstem_pipeline.lake.tables import PLANNED_FIELDS, pairs_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

GROUP_FILES_MAX = 1_000
GROUPS_MAX = 100  # of one commit; the next ones follow it
LOST_MAX = 5  # times in a row that another changed the files which were being joined

Order = Callable[["DataFile"], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Compacted:
    table: str
    before: int
    after: int
    bytes: int


def bins(files: Sequence[DataFile], order: Order, target_bytes: int, cut: Collection[str] = ()) -> list[list[DataFile]]:
    """Runs of neighbours (same place, in order) that together stay near the target.

    Single files are left alone, but for those of which rows are deleted (`cut`).
    """
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
    return [group for group in found if len(group) > 1 or group[0].file_path in cut]


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
    table = Committer(catalog, name, "").table()
    check_writable(table)
    before = len(planned_tasks(table))
    size = lost = 0
    groups = GROUPS_MAX
    while lost < LOST_MAX and (groups == GROUPS_MAX or lost):
        groups, done = _compact_some(spark, catalog, name, properties, target_bytes)
        size += done
        lost = lost + 1 if groups and not done else 0
    return Compacted(name, before, len(planned_tasks(Committer(catalog, name, "").table())), size)


def _compact_some(
    spark: SparkSession, catalog: Catalog, name: str, properties: Mapping[str, str], target_bytes: int
) -> tuple[int, int]:
    """(runs of files, bytes) that were joined; no bytes if another changed the files meanwhile."""
    committer = Committer(catalog, name, "")
    table = committer.table()
    tasks = planned_tasks(table)
    deletes = {task.file.file_path: planned(task) for task in tasks}
    cut = {path for path, one in deletes.items() if one.deletes}
    groups = bins([task.file for task in tasks], order_of(table), target_bytes, cut)[:GROUPS_MAX]
    if not groups:
        return 0, 0
    joining = [[deletes[one.file_path] for one in group] for group in groups]
    rows = [
        (packed((first.spec_id, first.partition)), [(one.path, list(one.deletes)) for one in group])
        for (first, *_), group in zip(groups, joining, strict=True)
    ]
    spread = spark.sparkContext.parallelize(rows, len(rows))  # a task each
    frame = spark.createDataFrame(spread, f"place binary, files array<struct<{PLANNED_FIELDS}>>")
    made = unpacked(frame.mapInArrow(joiner(table.metadata_location, properties), SCHEMA).collect())
    replaced = {one.path: one for group in joining for one in group}

    def swap(current: Table, carried: dict[str, str]) -> bool:
        from mainstem_pipeline.lake.snapshots import ChangedFiles

        now = {task.file.file_path: task for task in planned_tasks(current)}
        if any(path not in now or planned(now[path]) != one for path, one in replaced.items()):
            return False  # another maintenance was first, or a row was deleted since
        with current.transaction() as transaction:
            update = ChangedFiles(transaction, carried, is_replace=True)
            for path in replaced:
                update.delete_data_file(now[path].file)
            for one in made:
                update.append_data_file(one)
            needed = {one.file_path for path, task in now.items() if path not in replaced for one in task.delete_files}
            update.drop_deletes(
                [one for task in now.values() for one in task.delete_files if one.file_path not in needed]
            )
            update.commit()
        return True

    if not committer.attempt(swap):
        remove_files(table, [one.file_path for one in made])
        return len(groups), 0
    return len(groups), sum(one.file_size_in_bytes for group in groups for one in group)


def joiner(
    metadata: str, properties: Mapping[str, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: lists of files in, the one file each became out; none if all rows are deleted.

    Rows are copied in order, a batch at a time.
    """

    def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyiceberg.table import StaticTable

        table = StaticTable.from_metadata(metadata, dict(properties))
        for batch in batches:
            for row in batch.to_pylist():
                files = [PlannedFile(one["path"], pairs_of(one["deletes"])) for one in row["files"]]
                yield from told([join_files(table, files, row["place"])])

    return join


def join_files(table: Table, files: Sequence[PlannedFile], place: bytes) -> DataFile | None:
    """A file with all rows of these, under the table's schema as it is now; None if there are none.

    `place`: the id of their partition spec, and their partition in it, packed.
    """
    path = f"{table.location().rstrip('/')}/data/compacted-{uuid.uuid4().hex}.parquet"
    schema = written_schema(table.schema())
    columns = current_columns(table) if SOURCE in table.properties else None
    read = (rows for one in files for rows in file_batches(table.io, one, table.schema()))
    batches = (rows for rows in read if rows.num_rows)
    first = next(batches, None)
    if first is None:
        return None
    output = table.io.new_output(path)
    with output.create() as out:
        with parquet_writer(out, schema, columns, first) as writer:
            for rows in chain([first], batches):
                writer.write_batch(rows, row_group_size=ROW_GROUP_ROWS)
        footer = writer.writer.metadata
    spec_id, partition = pickle.loads(place)
    return described(table.metadata, output.location, len(output), footer, partition=partition, spec_id=spec_id)


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

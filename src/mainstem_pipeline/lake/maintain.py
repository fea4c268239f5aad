"""Keeping tables in shape: small files into large ones in their order, old snapshots away, nobody's files removed.

Compaction joins neighbours only: files of one partition, of one log and with adjacent offsets for raw tables, and copies
rows as they are, so that offset order stays. It is committed as one `replace` snapshot: readers of appends (streams, the
archive) pass it over. Files that no snapshot names go once they are older than the grace time, so that a scan that is
under way, or a commit about to happen, still finds its files.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mainstem_pipeline.lake.commits import Committer, data_files, remove_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

GROUP_FILES_MAX = 1_000
ROW_GROUP_ROWS = 32_768
COPY_ROWS = 32_768


@dataclass(frozen=True, slots=True)
class Compacted:
    table: str
    before: int
    after: int
    bytes: int


def bins(
    files: Sequence[DataFile], order: Callable[[DataFile], tuple[Any, ...]], target_bytes: int
) -> list[list[DataFile]]:
    """Runs of neighbours (same partition, in order) that together stay near the target; single files are left alone."""
    found: list[list[DataFile]] = []
    size = 0
    last: tuple[Any, ...] | None = None
    for one in sorted(files, key=order):
        place = order(one)[:-1]
        fits = size + one.file_size_in_bytes <= target_bytes and found and len(found[-1]) < GROUP_FILES_MAX
        if place != last or not fits:
            found.append([])
            size = 0
        found[-1].append(one)
        size, last = size + one.file_size_in_bytes, place
    return [group for group in found if len(group) > 1]


def order_of(table: Table) -> Callable[[DataFile], tuple[Any, ...]]:
    """Partition first; raw tables then by log and offset, others by file path."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import LongType

    schema = table.schema()
    names = set(schema.column_names)
    is_raw = {"log", "offset", "batch"} <= names

    def order(one: DataFile) -> tuple[Any, ...]:
        partition = str(one.partition)
        if not is_raw:
            return (partition, one.file_path)
        lower = one.lower_bounds or {}
        numbers = []
        for name in ("log", "offset"):
            number = schema.find_field(name).field_id
            numbers.append(from_bytes(LongType(), lower[number]) if number in lower else 0)
        return (partition, numbers[0], numbers[1])

    return order


def compact(
    spark: SparkSession, catalog: Catalog, name: str, properties: Mapping[str, str], target_bytes: int
) -> Compacted:
    """Rewrite runs of small files, a Spark task each, and swap them in one snapshot."""
    committer = Committer(catalog, name, "maintenance")
    table = committer.table()
    files = [task.file for task in table.scan().plan_files()]
    groups = bins([one for one in files if one.file_size_in_bytes < target_bytes], order_of(table), target_bytes)
    if not groups:
        return Compacted(name, len(files), len(files), 0)
    rows = [(index, [one.file_path for one in group]) for index, group in enumerate(groups)]
    frame = spark.createDataFrame(rows, "number int, paths array<string>").repartition(len(rows), "number")
    writer = joiner(table.location(), properties)
    made = {row["number"]: row["path"] for row in frame.mapInArrow(writer, "number int, path string").collect()}
    replaced = {one.file_path for group in groups for one in group}

    def swap(current: Table, carried: dict[str, str]) -> bool:
        now = {task.file.file_path: task.file for task in current.scan().plan_files()}
        if not replaced <= set(now):
            return False  # another maintenance was first
        with current.transaction() as transaction:
            update = replace_files(transaction, carried)
            for path in replaced:
                update.delete_data_file(now[path])
            for one in data_files(current, list(made.values())):
                update.append_data_file(one)
            update.commit()
        return True

    if not committer.attempt(swap):
        remove_files(table, made.values())
        return Compacted(name, len(files), len(files), 0)
    size = sum(one.file_size_in_bytes for group in groups for one in group)
    return Compacted(name, len(files), len(files) - len(replaced) + len(made), size)


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
    location: str, properties: Mapping[str, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: lists of files in, the one file each became out. Rows are copied in order, a batch at a time."""

    def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyiceberg.io import load_file_io

        io = load_file_io(dict(properties), location)
        for batch in batches:
            for row in batch.to_pylist():
                path = f"{location.rstrip('/')}/data/compacted-{uuid.uuid4().hex}.parquet"
                writer = None
                with io.new_output(path).create() as out:
                    for source in row["paths"]:
                        with io.new_input(source).open() as stream:
                            file = pq.ParquetFile(stream)
                            schema = file.schema_arrow
                            for rows in file.iter_batches(COPY_ROWS):
                                if writer is None:
                                    writer = pq.ParquetWriter(out, schema, compression="zstd", write_page_index=True)
                                writer.write_batch(rows.cast(writer.schema), row_group_size=ROW_GROUP_ROWS)
                    assert writer is not None, "files of a snapshot hold rows"
                    writer.close()
                made = [pa.array([row["number"]], pa.int32()), pa.array([path])]
                yield pa.RecordBatch.from_arrays(made, names=["number", "path"])

    return join


def expire(catalog: Catalog, name: str, keep: int) -> int:
    """Drop all but the newest snapshots; their properties were carried forward. Returns how many went."""
    table = Committer(catalog, name, "maintenance").table()
    ordered = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    current = table.current_snapshot()
    old = [one.snapshot_id for one in ordered[:-keep] if current is None or one.snapshot_id != current.snapshot_id]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()
    return len(old)


def remove_unreferenced(catalog: Catalog, name: str, grace_s: float) -> int:
    """Delete files below the table's location that no snapshot names and that are older than the grace time."""
    table = Committer(catalog, name, "maintenance").table()
    known = referenced(table)
    oldest = time.time() - grace_s
    gone = [path for path, modified_s in listed(table) if path not in known and modified_s < oldest]
    return remove_files(table, gone)


def referenced(table: Table) -> set[str]:
    """Every file that some snapshot, or the metadata itself, names."""
    found = {table.metadata_location, *(one.metadata_file for one in table.metadata.metadata_log)}
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {one.data_file.file_path for one in manifest.fetch_manifest_entry(table.io, discard_deleted=True)}
    return {_plain(path) for path in found}


def _plain(path: str) -> str:
    return path.removeprefix("file://")


def listed(table: Table) -> Iterator[tuple[str, float]]:
    """(path, modification time) of everything below the table's location."""
    from pyarrow.fs import FileSelector, FileType
    from pyiceberg.io.pyarrow import PyArrowFileIO

    location = table.location()
    parts = urlsplit(location)
    scheme, netloc = parts.scheme or "file", parts.netloc
    system = PyArrowFileIO(table.io.properties).fs_by_scheme(scheme, netloc)
    base = f"{netloc}{parts.path}" if scheme != "file" else parts.path
    prefix = f"{scheme}://" if scheme != "file" else ""
    for one in system.get_file_info(FileSelector(base, recursive=True, allow_not_found=True)):
        if one.type == FileType.File:
            yield prefix + one.path, one.mtime_ns / 1e9

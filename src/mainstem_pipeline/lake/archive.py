"""Archiving: log slices become Parquet files inside Spark's tasks; only their names travel through the JVM.

A batch of the stream is a list of descriptors (tasks to be read). Each is read, written and closed where it runs; the
driver commits the files with the batch's id and its end offsets in the snapshot. A batch that is run again after a crash
finds its id there: its files are removed, nothing is committed twice.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.commits import Committer, ensure_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec
    from pyspark.sql import DataFrame

SOURCE = "mainstem.source"
FILE_SCHEMA = "path string, rows bigint, size_bytes bigint"


@dataclass(frozen=True, slots=True)
class Archived:
    """What one batch added."""

    batch: int
    files: int
    rows: int
    bytes: int
    committed: bool


def raw_spec() -> PartitionSpec:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import DayTransform

    return PartitionSpec(PartitionField(source_id=6, field_id=1000, transform=DayTransform(), name="appended_day"))


class Archive:
    """One raw table and its only committer."""

    def __init__(self, lake: LakeOptions, table: str, source: str = "") -> None:
        """`source` ("filter:sensors/#", "subscribe:orders") lets SQL over that name find this table."""
        from mainstem_pipeline.lake.raw import iceberg_schema

        self.lake, self.name = lake, table
        self._catalog = open_catalog(lake)
        made = ensure_table(self._catalog, table, iceberg_schema(), raw_spec(), {SOURCE: source} if source else None)
        self.location = made.location()
        self._epoch: int | None = None

    def batch(self, query: str, frame: DataFrame, batch: int) -> Archived:
        """Write and commit one batch of descriptors; safe to repeat."""
        committer = Committer(self._catalog, self.name, query, epoch=self._epoch)
        if self._epoch is None:
            self._epoch = committer.take_over()
        if committer.committed() >= batch:
            return Archived(batch, 0, 0, 0, committed=False)
        rows = frame.select("task", "ends").mapInArrow(
            writer(self.location, self.lake.file_properties(), f"{query[:8]}-{batch}"), f"{FILE_SCHEMA}, ends string"
        )
        files = rows.collect()  # a few hundred bytes a file
        if not files:
            return Archived(batch, 0, 0, 0, committed=False)
        ends: dict[str, dict[str, int]] = json.loads(files[0]["ends"])
        paths = [one["path"] for one in files]
        done = committer.commit(batch, paths, next_offsets=ends)
        return Archived(batch, len(files), sum(f["rows"] for f in files), sum(f["size_bytes"] for f in files), done)


def writer(
    location: str, properties: Mapping[str, str], prefix: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: descriptors in, the files they became out."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from mainstem_pipeline.lake.raw import write_task

        for batch in batches:
            written: list[dict[str, Any]] = []
            for row in batch.to_pylist():
                files = write_task(pickle.loads(row["task"]), location, properties, prefix)
                written += [
                    {"path": f.path, "rows": f.rows, "size_bytes": f.size_bytes, "ends": row["ends"]} for f in files
                ]
            if written:
                yield pa.RecordBatch.from_pylist(
                    written,
                    schema=pa.schema(
                        [("path", pa.string()), ("rows", pa.int64()), ("size_bytes", pa.int64()), ("ends", pa.string())]
                    ),
                )

    return write

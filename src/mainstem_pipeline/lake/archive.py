"""Archiving: log slices become Parquet files inside Spark's tasks; only their names travel through the JVM.

A batch of the stream is a list of descriptors (tasks to be read). Each is read, written and closed where it runs; the
driver commits the files with the batch's id and its end offsets in the snapshot. A batch that is run again after a crash
finds its id there: nothing is committed twice. The driver takes the table over in a new epoch when it starts: an older
one can commit nothing any more, and what it left behind uncommitted is removed.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mainstem.codec.raw_table import (
    FIELDS,
    NUMBERS,
    assigned_fields,
    current_columns,
    iceberg_schema,
    partition_spec,
    sort_order,
)
from mainstem.model.errors import ConfigError
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.commits import (
    SOURCE,
    Committer,
    Progress,
    ensure_table,
    next_offsets_of,
    remove_files,
)
from mainstem_pipeline.lake.data_files import packed, unpacked
from mainstem_pipeline.lake.maintain import expire, listed, referenced
from mainstem_pipeline.lake.raw import Place, write_task
from mainstem_pipeline.lake.room import room_in
from mainstem_pipeline.offsets import Offsets
from mainstem_pipeline.workers import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

FILE_SCHEMA = "file binary, offsets string"
SNAPSHOTS_MAX = 100  # each commit costs more with every snapshot kept
GRACE_S = 3_600.0
TASK_BYTES = 128 << 20  # of the log; one file each, as a rule, of a fifth of that
_NAME = re.compile(r"e(\d+)-[^/]*\.parquet$")


@dataclass(frozen=True, slots=True)
class Archived:
    """What one batch added, and where the table ends with it."""

    batch: int
    files: int = 0
    rows: int = 0
    bytes: int = 0
    ends: Offsets = field(default_factory=dict)


class Archive:
    """One raw table and its only committer."""

    source_property = SOURCE

    def __init__(self, lake: LakeOptions, table: str, source: str = "") -> None:
        """`source` ("filter:sensors/#", "subscribe:orders") lets SQL over that name find this table."""
        self.lake, self.name = lake, table
        self._catalog = open_catalog(lake)
        made = self._made({self.source_property: source})
        known = made.properties.get(self.source_property)
        if known != source:
            raise ConfigError(
                f"table {table} is {f'the archive of {known}' if known else 'no archive'}, not of {source}",
                fix="give this archive a table of its own: --table NAMESPACE.NAME",
            )
        with room_in(made.location()):
            self.epoch = Committer(self._catalog, table, "").take_over()
        self._remove_leftovers()

    def _made(self, properties: dict[str, str]) -> Table:
        """The table, made if it is not there yet."""
        made = ensure_table(
            self._catalog, self.name, iceberg_schema(), partition_spec(), properties, order=sort_order()
        )
        if made.current_snapshot() is None and FIELDS not in made.properties:
            self._note_fields(made)
        return made

    @staticmethod
    def _note_fields(table: Table) -> None:
        """Of a table that is new: which ids its catalog gave our columns, if they are others than ours."""
        assigned = assigned_fields(table.schema())
        if assigned != {number: number for number in NUMBERS}:
            with table.transaction() as transaction:
                transaction.set_properties({FIELDS: json.dumps(assigned)})

    @property
    def position(self) -> str:
        """`startingOffsets` of a stream without a checkpoint: where the table ends; empty if nothing is in it yet."""
        return f"table:{self.name}" if next_offsets_of(self._table()) else ""

    def _remove_leftovers(self) -> None:
        """Files of older epochs that no snapshot names; whoever made them can no longer commit them."""
        table = self._table()
        old = [path for path, _ in listed(table) if (made := _NAME.search(path)) and int(made[1]) < self.epoch]
        if old:
            known = referenced(table)
            remove_files(table, [path for path in old if path not in known])

    def _table(self) -> Table:
        return Committer(self._catalog, self.name, "").table()

    def batch(self, query: str, frame: DataFrame, batch: int) -> Archived:
        """Write and commit one batch of descriptors; safe to repeat."""
        committer = Committer(self._catalog, self.name, query, epoch=self.epoch)
        table = committer.table()
        if committer.committed() >= batch:
            return Archived(batch, ends=next_offsets_of(table))
        files, offsets = self._written(table, frame.select("task", "offsets"), f"e{self.epoch:06d}-{query[:8]}-{batch}")
        # Without files too: the table's end moves past what others wrote, and the log need not be kept for its sake.
        progress = Progress(offsets["start"], offsets["end"])
        with room_in(table.location()):
            committer.commit(batch, files, progress=progress)
        table = committer.table()
        if len(table.metadata.snapshots) > SNAPSHOTS_MAX:
            expire(self._catalog, self.name, SNAPSHOTS_MAX // 2, GRACE_S)
        rows, size = sum(one.record_count for one in files), sum(one.file_size_in_bytes for one in files)
        return Archived(batch, len(files), rows, size, next_offsets_of(table))

    def _written(self, table: Table, tasks: DataFrame, prefix: str) -> tuple[list[DataFile], dict[str, Any]]:
        """A batch's descriptors as files, and the range that it is."""
        place = Place(
            table.location(), self.lake.file_properties(), prefix, current_columns(table), table.metadata_location
        )
        told = tasks.mapInArrow(writer(place), FILE_SCHEMA).collect()  # a row a file
        return unpacked(told), range_of(told)


def range_of(told: Iterable[Any]) -> dict[str, Any]:
    """Start and end of a batch, which goes through one of its tasks."""
    found: dict[str, Any] = json.loads(next(one["offsets"] for one in told if one["offsets"] is not None))
    return found


def writer(place: Place) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: descriptors in, the files they became out; the batch's range goes through."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        schema = pa.schema([("file", pa.binary()), ("offsets", pa.string())])
        for batch in batches:
            told: list[dict[str, Any]] = []
            for row in batch.to_pylist():
                if row["offsets"] is not None:
                    told.append({"offsets": row["offsets"]})
                    continue
                with room_in(place.location):
                    written = write_task(pickle.loads(row["task"]), place)
                told += [{"file": packed(one)} for one in written]
            if told:
                yield pa.RecordBatch.from_pylist(told, schema=schema)
        settle()

    return write

"""Writing raw tables (`mainstem.codec.raw_table` draws them): a task's slices as Parquet files, one log and day a file."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.codec.raw_table import APPENDED_ID, Columns, LogRows, parquet_writer
from mainstem_pipeline.lake.data_files import described
from mainstem_pipeline.slices import ScanTask, read_task

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

ROW_GROUP_ROWS = 65_536
ROW_GROUP_BYTES = 32 << 20  # of Arrow data, held by a task until they are written
FILE_BYTES = 256 << 20  # of Arrow data; Parquet is smaller
DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where tasks write, and what the table's columns are as the batch begins."""

    location: str
    properties: Mapping[str, str]
    prefix: str
    columns: Columns
    metadata: str  # the table's, then


def write_task(task: ScanTask, place: Place) -> list[DataFile]:
    """A task's slices as Parquet files that no snapshot names yet, one log and one day a file."""
    written: list[DataFile] = []
    files: RawFiles | None = None
    rows: LogRows | None = None
    try:
        for piece in task.slices:
            if rows is None or files is None or not rows.fits(piece):
                written += files.finish() if files is not None else []
                rows = LogRows(piece, task.selection.get("filter") is not None, place.columns)
                files = RawFiles(place, int(piece["log"]), rows.schema)
            for batch in read_task(replace(task, slices=[piece]), rows.decoded):
                files.add(rows.table_batch(batch))
        return written + (files.finish() if files is not None else [])
    except BaseException:
        if files is not None:
            files.drop(written)
        raise


def by_day(batch: pa.RecordBatch, column: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(day, rows) for each day in a column of times that only grow: mostly one, seen by a look at both ends."""
    if not batch.num_rows:
        return
    times = batch.column(column)
    first, last = times[0].value // DAY_US, times[-1].value // DAY_US
    if first == last:
        yield first, batch
        return
    days = times.cast(pa.int64()).to_numpy() // DAY_US
    start = 0
    for at in range(1, len(days) + 1):
        if at == len(days) or days[at] != days[start]:
            yield int(days[start]), batch.slice(start, at - start)
            start = at


class RawFiles:
    """One log's rows into files of a day and about FILE_BYTES each."""

    def __init__(self, place: Place, log: int, schema: pa.Schema) -> None:
        from pyiceberg.table import StaticTable

        self.log = log
        self._table = StaticTable.from_metadata(place.metadata, dict(place.properties))
        self._io = self._table.io
        self._place, self._schema = place, schema
        self._appended = schema.get_field_index(place.columns[APPENDED_ID][1])
        self._writer: pq.ParquetWriter | None = None
        self._output: Any = None
        self._stream: Any = None
        self._day = self._bytes = 0
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self._done: list[DataFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        for day, rows in by_day(batch, self._appended):
            self._add(day, rows)

    def _add(self, day: int, batch: pa.RecordBatch) -> None:
        if self._writer is not None and (day != self._day or self._bytes >= FILE_BYTES):
            self._close()
        if self._writer is None:
            self._open(day, batch)
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= ROW_GROUP_ROWS or self._held_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        """What is held, as a row group."""
        assert self._writer is not None
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held), row_group_size=self._held_rows)
        self._bytes += self._held_bytes
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def _open(self, day: int, first: pa.RecordBatch) -> None:
        place = self._place
        path = f"{place.location.rstrip('/')}/data/{place.prefix}-{self.log}-{uuid.uuid4().hex}.parquet"
        self._output = self._io.new_output(path)
        self._stream = self._output.create(overwrite=False)
        self._writer = parquet_writer(self._stream, self._schema, place.columns, first)
        self._day, self._bytes = day, 0

    def _close(self) -> None:
        assert self._writer is not None
        self._flush()
        self._writer.close()
        self._stream.close()
        footer = self._writer.writer.metadata
        self._done.append(described(self._table.metadata, self._output.location, len(self._output), footer))
        self._writer = None

    def finish(self) -> list[DataFile]:
        if self._writer is not None:
            self._close()
        return self._done

    def drop(self, others: list[DataFile]) -> None:
        """A failed task leaves no files behind, as far as it can."""
        if self._writer is not None:
            with contextlib.suppress(OSError):  # what is still to be written may be what failed
                self._stream.close()
            self._io.delete(self._output.location)
        for one in (*self._done, *others):
            self._io.delete(one.file_path)

"""Decoding as tasks do it, in Spark's workers or in one process: rows of records in, Parquet files of a decoded table out.

A task decodes by the shape that the table has. If its values need more, it writes nothing: it reads on, and what it tells is
the shape they need. Whoever gave the tasks out makes the columns and gives them out again.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.codec.raw_table import COLUMNS, LOG_ID, OFFSET_ID, TOPIC_ID, LogRows, current_columns
from mainstem_pipeline.lake.arrays import by_name, projected_batch
from mainstem_pipeline.lake.data_files import written
from mainstem_pipeline.lake.deletes import PlannedFile
from mainstem_pipeline.lake.fields import Decoder
from mainstem_pipeline.lake.reading import file_batches, written_schema
from mainstem_pipeline.lake.room import room_in
from mainstem_pipeline.lake.shapes import OWN, Fields, fields_of
from mainstem_pipeline.options import Connection
from mainstem_pipeline.serialised import in_this_process
from mainstem_pipeline.slices import ScanTask, read_task
from mainstem_pipeline.workers import settle

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

FILE_BYTES = 128 << 20  # of Arrow data, held until it is sorted and written
ROWS_MAX = 131_072  # of a row group
OUTCOME = "outcome binary"
TIMESTAMP_ID, KEY_ID, VALUE_ID, FLAGS_ID, BATCH_ID = 4, 10, 11, 13, 14
READ_IDS = (LOG_ID, OFFSET_ID, TOPIC_ID, TIMESTAMP_ID, KEY_ID, VALUE_ID, FLAGS_ID, BATCH_ID)
UNREADABLE = -1
NO_BATCH = "the batch cannot be read: its client made it so"


@dataclass(frozen=True, slots=True)
class Target:
    """The decoded table as it is when tasks are given out."""

    metadata: str
    properties: Mapping[str, str]
    connection: Connection
    prefix: str  # of files' names
    learns: bool
    fixed: frozenset[str] | None = frozenset()  # as of fields_of
    keeps_values: bool = False  # there is no raw table: what has no fields is kept in `_value`


@dataclass(frozen=True, slots=True)
class FileJob:
    """Files of a raw table; rows below the positions (log → offset) are decoded already."""

    files: tuple[PlannedFile, ...]
    metadata: str
    positions: Mapping[str, int]


@dataclass(slots=True)
class Outcome:
    """The files that a task wrote, or the shape that its values need."""

    files: list[DataFile] = field(default_factory=list)
    shape: Fields | None = None
    ends: dict[str, int] = field(default_factory=dict)  # log → the offset after the last one seen


def decode_files(job: FileJob, target: Target) -> Outcome:
    from pyiceberg.table import StaticTable

    raw = StaticTable.from_metadata(job.metadata, dict(target.properties))
    columns = current_columns(raw)
    names = {number: columns[number][1] for number in READ_IDS if number in columns}
    schema = raw.schema().select(*names.values())

    def rows() -> Iterator[pa.RecordBatch]:
        for file in job.files:
            for batch in file_batches(raw.io, file, schema):
                batch = batch.select(list(names.values())).rename_columns([_NAMES[number] for number in names])
                yield _newer(batch, job.positions)

    return _decode(rows(), target)


def decode_slices(task: ScanTask, target: Target) -> Outcome:
    """Straight from the log."""
    numbers = {number: (number, _NAMES[number]) for number in READ_IDS}

    def rows() -> Iterator[pa.RecordBatch]:
        for piece in task.slices:
            rows = LogRows(piece, task.selection.get("filter") is not None, numbers)
            for batch in read_task(replace(task, slices=[piece]), rows.decoded):
                yield rows.table_batch(batch)

    return _decode(rows(), target)


def job_decoder(target: Target) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: jobs (pickled) in, outcomes out."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                done = decode_files(pickle.loads(row["job"]), target)
                yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(done)], pa.binary())], names=["outcome"])
        settle()

    return decode


def slice_decoder(target: Target) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: descriptors in, outcomes out; the batch's range goes through."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([("outcome", pa.binary()), ("offsets", pa.string())])
        for batch in batches:
            for row in batch.to_pylist():
                told: dict[str, Any] = {"offsets": row["offsets"]}
                if row["offsets"] is None:
                    told = {"outcome": pickle.dumps(decode_slices(pickle.loads(row["task"]), target))}
                yield pa.RecordBatch.from_pylist([told], schema=schema)
        settle()

    return decode


_NAMES = {number: name for number, name, _, _ in COLUMNS}


def _newer(batch: pa.RecordBatch, positions: Mapping[str, int]) -> pa.RecordBatch:
    logs = pc.unique(batch.column("log")).to_pylist()
    if not any(str(log) in positions for log in logs):
        return batch
    least = pa.array([positions.get(str(log), 0) for log in logs], pa.int64())
    places = pc.index_in(batch.column("log"), value_set=pa.array(logs, pa.int64()))
    return batch.filter(pc.greater_equal(batch.column("offset"), least.take(places)))


def _decode(batches: Iterable[pa.RecordBatch], target: Target) -> Outcome:
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(target.metadata, dict(target.properties))
    work = _Work(table, target)
    try:
        with room_in(table.location()):
            for batch in batches:
                work.add(batch)
            return work.finish()
    except BaseException:
        work.drop()
        raise


class _Work:
    """One task's rows on their way into files."""

    def __init__(self, table: Table, target: Target) -> None:
        self._table, self._target = table, target
        self._schema = written_schema(table.schema())
        shape = fields_of(table.schema(), target.fixed)
        serialised = in_this_process(target.connection)
        serialised.look_again()  # its ids are older than this task's values, which stay without fields if one is not known
        self._decoder = Decoder(shape, serialised, learns=target.learns)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._done = Outcome()

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._note_ends(batch)
        columns = self._decoder.columns(batch.column("value"))
        if columns is None:
            self.drop()
            return
        own = [batch.column(name) for name in ("log", "offset", "topic", "timestamp", "key")]
        told = [columns.rest, columns.reasons]
        names = [*OWN, "_rest", "_reason"]
        if self._target.keeps_values:
            reasons, values = _kept(batch, columns.reasons)
            told, names = [columns.rest, reasons, values], [*names, "_value"]
        names += [one.name for one in columns.fields.type]
        rows = pa.RecordBatch.from_arrays([*own, *told, *columns.fields.flatten()], names=names)
        self._held.append(projected_batch(rows, self._schema, by_name))
        self._held_bytes += self._held[-1].nbytes
        if self._held_bytes >= FILE_BYTES:
            self._write()

    def _note_ends(self, batch: pa.RecordBatch) -> None:
        logs, offsets = batch.column("log"), batch.column("offset")
        for log in pc.unique(logs).to_pylist():
            last = pc.max(offsets.filter(pc.equal(logs, log))).as_py() + 1
            self._done.ends[str(log)] = max(self._done.ends.get(str(log), 0), last)

    def finish(self) -> Outcome:
        self._done.shape = self._decoder.grown
        if self._held:
            self._write()
        return self._done

    def drop(self) -> None:
        """A task that failed, or learned, leaves no files behind."""
        for one in self._done.files:
            self._table.io.delete(one.file_path)
        self._done.files, self._held, self._held_bytes = [], [], 0

    def _write(self) -> None:
        rows = _sorted(self._table, pa.Table.from_batches(self._held, self._schema))
        self._held, self._held_bytes = [], 0
        for place, part in _partitioned(self._table, rows):
            path = f"{self._table.location().rstrip('/')}/data/{self._target.prefix}-{uuid.uuid4().hex}.parquet"
            self._done.files.append(written(self._table, path, self._schema, part.to_batches(ROWS_MAX), **place))


def _kept(batch: pa.RecordBatch, reasons: pa.Array) -> tuple[pa.Array, pa.Array]:
    """(reasons, the bytes of values that have no fields): without a raw table nothing else has them."""
    values = pc.if_else(reasons.is_valid(), batch.column("value"), pa.scalar(None, pa.binary()))
    broken = pc.equal(batch.column("flags"), UNREADABLE)
    if pc.any(broken).as_py():
        values = pc.if_else(broken, batch.column("batch"), values)
        reasons = pc.if_else(broken, NO_BATCH, reasons)
    return reasons, values


def _sorted(table: Table, rows: pa.Table) -> pa.Table:
    """As the table's own order says; each file by itself."""
    from pyiceberg.table.sorting import SortDirection

    schema = table.schema()
    keys = []
    for one in table.sort_order().fields:
        name = schema.find_column_name(one.source_id)
        if name is not None and name in rows.schema.names:
            keys.append((name, "ascending" if one.direction == SortDirection.ASC else "descending"))
    return rows.sort_by(keys) if keys else rows


def _partitioned(table: Table, rows: pa.Table) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """The rows of each partition, with which it is."""
    from pyiceberg.io.pyarrow import _determine_partitions
    from pyiceberg.typedef import Record

    if table.spec().is_unpartitioned():
        yield {"partition": Record()}, rows
        return
    for one in _determine_partitions(table.spec(), table.schema(), rows):
        yield {"partition": one.partition_key.partition}, one.arrow_table_partition


Run = Callable[[Sequence[FileJob], Target], list[Outcome]]


def here(jobs: Sequence[FileJob], target: Target) -> list[Outcome]:
    """In this process, one after another."""
    return [decode_files(one, target) for one in jobs]


def in_spark(spark: Any) -> Run:
    """A Spark task for each job."""

    def run(jobs: Sequence[FileJob], target: Target) -> list[Outcome]:
        spread = spark.sparkContext.parallelize([(pickle.dumps(one),) for one in jobs], len(jobs))
        frame = spark.createDataFrame(spread, "job binary")
        return [pickle.loads(row["outcome"]) for row in frame.mapInArrow(job_decoder(target), OUTCOME).collect()]

    return run

"""`format("mainstem")` for Spark: batch and stream reads, batch and stream writes.

Import-light on purpose: Spark starts Python processes to look this class up and to plan, and waits only ten seconds for
each; Arrow and the codec are imported where rows are read. Spark 4.1 and later; the admission control and
`availableNow` of 4.2 are used where they are.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as api
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from mainstem.codec.arrow_rows import check_schema, ddl
from mainstem.model.errors import MainstemError
from mainstem_pipeline.offsets import Offsets, copied, is_another, pairs
from mainstem_pipeline.options import ReadOptions, read_options
from mainstem_pipeline.scans import Scan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from mainstem_pipeline.slices import ScanTask

STANDING_OFFSETS_MAX = 1_000_000  # passed by without a row of ours
STANDING_S_MAX = 60.0

try:  # since Spark 4.2
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # pragma: no cover - Spark 4.1
    ReadAllAvailable = ReadLimit = ReadMaxBytes = ReadMaxRows = None  # type: ignore[assignment,misc]
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Spark shows a Python error's text only: put the fix into it."""
    try:
        yield
    except MainstemError as error:
        if error.fix and error.fix not in str(error):
            error.args = (f"{error.message} (fix: {error.fix})",)
        raise


# A task to be read elsewhere, a row each; one row more has the range of the batch and no task.
DESCRIPTOR_SCHEMA = "task binary, rows bigint, bytes bigint, offsets string"


class MainstemSource(DataSource):
    """Registered by the package `pyspark_mainstem`, or with `spark.dataSource.register(MainstemSource)`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "mainstem"

    @told()
    def schema(self) -> str:
        options = read_options(self._given_for_schema(), streaming=True)
        return DESCRIPTOR_SCHEMA if options.descriptors else ddl(options.columns)

    def _given_for_schema(self) -> dict[str, str]:
        """The schema does not depend on where reading starts or ends, whose rules differ for batch and stream."""
        return {
            name: value for name, value in self._given.items() if not name.lower().startswith(("starting", "ending"))
        }

    @told()
    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self._given, streaming=False)
        _check(schema, options)
        return PushdownReader(options, schema) if options.pushdown else BatchReader(options, schema)

    @told()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = read_options(self._given, streaming=True)
        _check(schema, options)
        return StreamReader(options, schema)

    @told()
    def writer(self, schema: StructType, overwrite: bool) -> api.DataSourceWriter:
        from mainstem_pipeline.sink import batch_writer

        return batch_writer(self._given, schema, overwrite)

    @told()
    def streamWriter(self, schema: StructType, overwrite: bool) -> api.DataSourceStreamWriter:
        from mainstem_pipeline.sink import stream_writer

        return stream_writer(self._given, schema)


def _check(schema: StructType, options: ReadOptions) -> None:
    if not options.descriptors:
        check_schema({field.name: field.dataType.simpleString() for field in schema.fields})


class Slices(InputPartition):
    """The slices of one task."""

    def __init__(self, task: ScanTask) -> None:
        super().__init__(None)
        self.task = task


class Descriptor(InputPartition):
    """A task that is a row itself, or the range of the batch: {"start": offsets, "end": offsets}."""

    def __init__(self, task: ScanTask | None, offsets: Mapping[str, Offsets] | None = None) -> None:
        super().__init__(None)
        self.task, self.offsets = task, offsets


def _partitions(options: ReadOptions, tasks: Sequence[ScanTask], start: Offsets, end: Offsets) -> list[InputPartition]:
    if not options.descriptors:
        return [Slices(task) for task in tasks]
    return [*map(Descriptor, tasks), Descriptor(None, {"start": start, "end": end})]


def _read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    from pyspark.sql.pandas.types import to_arrow_schema

    from mainstem_pipeline.slices import read_task
    from mainstem_pipeline.workers import settle

    arrow = to_arrow_schema(schema, timezone="UTC")
    with told():
        if isinstance(partition, Descriptor):
            yield _descriptor(partition, arrow)
        elif isinstance(partition, Slices):  # else Spark's stand-in where there is nothing to read
            yield from read_task(partition.task, arrow)
    settle()


def _descriptor(partition: Descriptor, schema: pa.Schema) -> pa.RecordBatch:
    import json
    import pickle

    import pyarrow as pa

    task, offsets = partition.task, partition.offsets
    rows, size = (sum(piece[name] for piece in task.slices) if task is not None else 0 for name in ("rows", "bytes"))
    values = [
        [pickle.dumps(task) if task is not None else None],
        [rows],
        [size],
        [json.dumps(offsets) if offsets is not None else None],
    ]
    arrays = [pa.array(value, field.type) for value, field in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options, self.schema = options, schema

    @told()
    def partitions(self) -> Sequence[InputPartition]:
        scan = Scan(self.options, ranged=True)
        try:
            start, end = scan.batch_range()
            return _partitions(self.options, scan.plan(start, end), start, end)
        finally:
            scan.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self.schema)


class PushdownReader(BatchReader):
    """A reader that has `pushFilters` fails to plan unless Spark's setting allows it: so it is chosen by option."""

    def pushFilters(self, filters: list[api.Filter]) -> Iterator[api.Filter]:
        from mainstem_pipeline.pushdown import pushed

        self.options, rest = pushed(self.options, filters)
        yield from rest


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are {topic: {partition: offset}}, as the Kafka source's; see offsets.py for `#` and `$ids`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options, self.schema = options, schema
        self._scan: Scan | None = None
        self._target: Offsets | None = None  # of a run with availableNow
        self._end: Offsets | None = None
        self._moved_s = time.monotonic()

    def _scanning(self) -> Scan:
        if self._scan is None:  # the reader is pickled: no connection before it is where it runs
            self._scan = Scan(self.options, ranged=True)
        return self._scan

    @told()
    def initialOffset(self) -> Offsets:
        return self._scanning().initial_offsets()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.rows_per_trigger_max is not None:
            return ReadMaxRows(self.options.rows_per_trigger_max)
        if self.options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(self.options.bytes_per_trigger_max)
        return ReadAllAvailable()

    @told()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._scanning().latest_offsets()

    @told()
    def latestOffset(self, start: Offsets | None = None, limit: ReadLimit | None = None) -> Offsets:
        scan = self._scanning()
        if start is None:  # Spark 4.1 asks without a start: go on from what it was told last
            start = self._end or scan.initial_offsets()
        target = scan.latest_offsets() if self._target is None else self._target
        end = scan.advanced(start, target)
        if limit is None:
            limit = self.getDefaultReadLimit() if ReadMaxRows is not None else None
        rows, size = getattr(limit, "max_rows", None), getattr(limit, "max_bytes", None)
        if rows is None and limit is None:
            rows = self.options.rows_per_trigger_max
        end, pending = scan.limited(start, end, rows_max=rows, bytes_max=size)
        if not pending and not self._must_move(start, end) and not scan.aged_out(start, end) and not _back(start, end):
            end = start  # others' records went by: no reason for an empty batch
        else:
            self._moved_s = time.monotonic()
        self._end = end
        return copied(end)

    def _must_move(self, start: Offsets, end: Offsets) -> bool:
        """An offset that stands still would one day be behind the log's start: move on now and then, without rows."""
        far = sum(offset - start.get(t, {}).get(p, offset) for t, p, offset in pairs(end)) > STANDING_OFFSETS_MAX
        return far or (end != start and time.monotonic() - self._moved_s > STANDING_S_MAX)

    def reportLatestOffset(self) -> Offsets | None:
        return self._scanning().latest_offsets()

    @told()
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        return _partitions(self.options, self._scanning().plan(start, end), start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self.schema)

    def commit(self, end: Offsets) -> None:
        self._scanning().committed(end)

    def stop(self) -> None:
        if self._scan is not None:
            self._scan.close()
            self._scan = None

    def __getstate__(self) -> Mapping[str, Any]:
        return {
            "options": self.options,
            "schema": self.schema,
            "_scan": None,
            "_target": self._target,
            "_end": None,
            "_moved_s": 0.0,
        }


def _back(start: Offsets, end: Offsets) -> bool:
    """Whether a partition goes back, because its topic was recreated: that must be written down, although it has no rows."""
    return any(
        end.get(topic, {}).get(partition, offset) < offset or is_another(topic, start, end)
        for topic, partition, offset in pairs(start)
    )

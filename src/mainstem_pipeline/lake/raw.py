"""A raw table: a topic's records as they are, with all that is needed to build the stored batches again.

| id | column | |
|---|---|---|
| 1, 2, 3 | `log` long, `partition` int, `offset` long | where the record lies; rows are in this order, in every file |
| 4, 5 | `timestamp` timestamptz, `timestamp_type` int | the record's own time |
| 6, 7 | `appended` timestamptz, `stamp` long (ns) | when it was written; the table is partitioned by `day(appended)` |
| 8, 9 | `topic`, `origin` string | the topic as written, the protocol it came in by |
| 10, 11 | `key`, `value` binary | |
| 12 | `headers` list<struct<key string, value binary>> | as a Kafka consumer sees them |
| 13, 14, 17 | `flags` int, `batch`, `stored_headers` binary | what else it takes to build the stored batches again |
| 15, 16 | `kafka_topic`, `content_type` string | |

Partitioned by the day of appending, not of the record: appending is monotonic, so a slice makes one file, or two at
midnight, however late or wrong the records' own times are; `timestamp` still prunes by each file's minimum and maximum.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mainstem_pipeline.slices import ScanTask, read_task

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

ROW_GROUP_ROWS = 32_768
FILE_BYTES = 128 << 20  # of Arrow data; Parquet is smaller
COMPRESSION_LEVEL = 1
DAY_US = 86_400_000_000
DICTIONARY_COLUMNS = ["topic", "origin", "log", "partition", "timestamp_type", "flags", "kafka_topic", "content_type"]

# What the decoder gives, in the table's order; `appended` is made of `stamp`.
DECODED = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("stamp", pa.int64()),
        pa.field("canonical_topic", pa.string()),
        pa.field("origin", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        pa.field("flags", pa.int32()),
        pa.field("batch", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("content_type", pa.string()),
        pa.field("stored_headers", pa.binary()),
    ]
)


def _field(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()})


def arrow_schema() -> pa.Schema:
    """The table's columns with Iceberg's field ids, so that names may change and data stays readable."""
    pair = pa.struct([_field("key", pa.string(), 19), _field("value", pa.binary(), 20)])
    return pa.schema(
        [
            _field("log", pa.int64(), 1),
            _field("partition", pa.int32(), 2),
            _field("offset", pa.int64(), 3),
            _field("timestamp", pa.timestamp("us", tz="UTC"), 4),
            _field("timestamp_type", pa.int32(), 5),
            _field("appended", pa.timestamp("us", tz="UTC"), 6),
            _field("stamp", pa.int64(), 7),
            _field("topic", pa.string(), 8),
            _field("origin", pa.string(), 9),
            _field("key", pa.binary(), 10),
            _field("value", pa.binary(), 11),
            _field("headers", pa.list_(_field("element", pair, 18)), 12),
            _field("flags", pa.int32(), 13),
            _field("batch", pa.binary(), 14),
            _field("kafka_topic", pa.string(), 15),
            _field("content_type", pa.string(), 16),
            _field("stored_headers", pa.binary(), 17),
        ]
    )


def iceberg_schema() -> Schema:
    from pyiceberg.schema import Schema
    from pyiceberg.types import (
        BinaryType,
        IntegerType,
        ListType,
        LongType,
        NestedField,
        StringType,
        StructType,
        TimestamptzType,
    )

    pair = StructType(NestedField(19, "key", StringType()), NestedField(20, "value", BinaryType()))
    return Schema(
        NestedField(1, "log", LongType()),
        NestedField(2, "partition", IntegerType()),
        NestedField(3, "offset", LongType()),
        NestedField(4, "timestamp", TimestamptzType()),
        NestedField(5, "timestamp_type", IntegerType()),
        NestedField(6, "appended", TimestamptzType()),
        NestedField(7, "stamp", LongType()),
        NestedField(8, "topic", StringType()),
        NestedField(9, "origin", StringType()),
        NestedField(10, "key", BinaryType()),
        NestedField(11, "value", BinaryType()),
        NestedField(12, "headers", ListType(18, pair, element_required=False)),
        NestedField(13, "flags", IntegerType()),
        NestedField(14, "batch", BinaryType()),
        NestedField(15, "kafka_topic", StringType()),
        NestedField(16, "content_type", StringType()),
        NestedField(17, "stored_headers", BinaryType()),
    )


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file that no snapshot names yet."""

    path: str
    rows: int
    size_bytes: int
    log: int = 0
    first_offset: int = 0
    last_offset: int = 0

    def to_document(self) -> dict[str, Any]:
        return asdict(self)


def write_task(task: ScanTask, location: str, properties: Mapping[str, str], prefix: str) -> list[WrittenFile]:
    """A task's slices as Parquet files below `location`, one log and one day a file."""
    written: list[WrittenFile] = []
    for piece in task.slices:
        log = int(piece["log"])
        one = ScanTask(**{**_fields(task), "slices": [piece]})
        files = RawFiles(location, properties, prefix, log)
        try:
            for batch in read_task(one, DECODED):
                for day in by_day(table_batch(batch, log)):
                    files.add(day)
        except BaseException:
            files.drop()
            raise
        written += files.finish()
    return written


def _fields(task: ScanTask) -> dict[str, Any]:
    return {name: getattr(task, name) for name in task.__dataclass_fields__}


def table_batch(batch: pa.RecordBatch, log: int) -> pa.RecordBatch:
    """Decoded rows as the table's."""
    appended = pc.divide(batch.column("stamp"), 1000).cast(pa.timestamp("us", tz="UTC"))

    columns = [
        pa.repeat(pa.scalar(log, pa.int64()), batch.num_rows),
        batch.column("partition"),
        batch.column("offset"),
        batch.column("timestamp"),
        batch.column("timestampType"),
        appended,
        batch.column("stamp"),
        batch.column("canonical_topic"),
        batch.column("origin"),
        batch.column("key"),
        batch.column("value"),
        batch.column("headers"),
        batch.column("flags"),
        batch.column("batch"),
        batch.column("topic"),
        batch.column("content_type"),
        batch.column("stored_headers"),
    ]
    schema = arrow_schema()
    headers = columns[11].cast(schema.field("headers").type)
    columns[11] = headers
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def by_day(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Runs of rows appended on one day: stamps only grow, so it is a look at both ends."""
    if not batch.num_rows:
        return
    days = pc.divide(batch.column("appended").cast(pa.int64()), DAY_US)
    if days[0] == days[-1]:
        yield batch
        return
    numbers = days.to_numpy()
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[start]:
            yield batch.slice(start, at - start)
            start = at


class RawFiles:
    """One log's rows into files of a day and about FILE_BYTES each."""

    def __init__(self, location: str, properties: Mapping[str, str], prefix: str, log: int) -> None:
        from pyiceberg.io import load_file_io

        self._io = load_file_io(dict(properties), location)
        self._location, self._prefix, self._log = location.rstrip("/"), prefix, log
        self._writer: pq.ParquetWriter | None = None
        self._output: Any = None
        self._stream: Any = None
        self._day = self._rows = self._first = self._last = self._bytes = 0
        self._done: list[WrittenFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        day = batch.column("appended")[0].value // DAY_US
        if self._writer is not None and (day != self._day or self._bytes >= FILE_BYTES):
            self._close()
        if self._writer is None:
            self._open(day, batch)
        assert self._writer is not None
        self._writer.write_batch(batch, row_group_size=ROW_GROUP_ROWS)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        self._last = batch.column("offset")[-1].as_py()

    def _open(self, day: int, batch: pa.RecordBatch) -> None:
        path = f"{self._location}/data/{self._prefix}-{self._log}-{uuid.uuid4().hex}.parquet"
        self._output = self._io.new_output(path)
        self._stream = self._output.create(overwrite=False)
        self._writer = pq.ParquetWriter(
            self._stream,
            batch.schema,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=DICTIONARY_COLUMNS,
            write_page_index=True,
            store_schema=False,
        )
        self._day, self._rows, self._bytes = day, 0, 0
        self._first = batch.column("offset")[0].as_py()

    def _close(self) -> None:
        assert self._writer is not None
        self._writer.close()
        self._stream.close()
        size = len(self._output)
        self._done.append(WrittenFile(self._output.location, self._rows, size, self._log, self._first, self._last))
        self._writer = None

    def finish(self) -> list[WrittenFile]:
        if self._writer is not None:
            self._close()
        return self._done

    def drop(self) -> None:
        """A failed task leaves no files behind, as far as it can."""
        if self._writer is not None:
            self._stream.close()
            self._io.delete(self._output.location)
        for one in self._done:
            self._io.delete(one.path)

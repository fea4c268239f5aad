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

A batch whose records cannot be read (its client sent it so) is one row: `batch` holds it whole, `flags` is -1.

Partitioned by the day of appending, not of the record: appending is monotonic, so a slice makes one file, or two at
midnight, however late or wrong the records' own times are; `timestamp` still prunes by each file's minimum and maximum.

Columns are known by their ids (a catalog may assign others than these; then the table's properties say which). Who
renames one, drops one or adds one of his own breaks nothing: files are written under the names the table has now, without
what it no longer has.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mainstem.model.origin import Origin

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.sorting import SortOrder

COMPRESSION_LEVEL = 1
WRITE_ROWS = 16_384  # encoded at once; pyarrow's own 1,024 cost 5 % of all writing in calls
LOG_ID, PARTITION_ID, OFFSET_ID, APPENDED_ID, TOPIC_ID = 1, 2, 3, 6, 8
ORIGIN_ID, KEY_ID, HEADERS_ID, KAFKA_TOPIC_ID = 9, 10, 12, 15
TIME = pa.timestamp("us", tz="UTC")
# Few distinct values a row group; in all other columns a dictionary would only cost.
DICTIONARY_NUMBERS = (1, 2, 5, 8, 9, 13, 15, 16)
# Numbers that grow by little: a difference packed into a few bits needs no compressing.
GROWING_NUMBERS = (3, 4, 6, 7)
# Files say so: a column that is never null is written without a level for each row. (The table's columns are optional.)
NEVER_NULL_NUMBERS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 15)
# No question is answered by the least and greatest of these, and they cost as much as writing the column.
NO_STATISTICS_NUMBERS = (11, 12, 14, 17)
FIELDS = "mainstem.fields"  # table property: our numbers → field ids, where the catalog gave others
Columns = Mapping[int, tuple[int, str]]

# Number, name, type, and what the decoder calls it; `log` and `appended` are made here, `origin` is said by its number.
COLUMNS: tuple[tuple[int, str, pa.DataType, str], ...] = (
    (1, "log", pa.int64(), ""),
    (2, "partition", pa.int32(), "partition"),
    (3, "offset", pa.int64(), "offset"),
    (4, "timestamp", TIME, "timestamp"),
    (5, "timestamp_type", pa.int32(), "timestampType"),
    (6, "appended", TIME, ""),
    (7, "stamp", pa.int64(), "stamp"),
    (8, "topic", pa.string(), "canonical_topic"),
    (9, "origin", pa.string(), "origin_number"),
    (10, "key", pa.binary(), "key"),
    (11, "value", pa.binary(), "value"),
    (12, "headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])), "headers"),
    (13, "flags", pa.int32(), "flags"),
    (14, "batch", pa.binary(), "batch"),
    (15, "kafka_topic", pa.string(), "topic"),
    (16, "content_type", pa.string(), "content_type"),
    (17, "stored_headers", pa.binary(), "stored_headers"),
)
ELEMENT_ID, HEADER_KEY_ID, HEADER_VALUE_ID = 18, 19, 20
ORIGINS = pa.array([one.name.lower() for one in Origin], pa.string())  # by their numbers
WORD = pa.dictionary(pa.int32(), pa.string())  # text that Parquet need not look up row by row


def iceberg_schema() -> Schema:
    from pyiceberg import types as t
    from pyiceberg.schema import Schema

    pair = t.StructType(
        t.NestedField(HEADER_KEY_ID, "key", t.StringType()), t.NestedField(HEADER_VALUE_ID, "value", t.BinaryType())
    )
    kinds: dict[pa.DataType, Any] = {
        pa.int32(): t.IntegerType(),
        pa.int64(): t.LongType(),
        pa.string(): t.StringType(),
        pa.binary(): t.BinaryType(),
        TIME: t.TimestamptzType(),
    }
    headers = t.ListType(ELEMENT_ID, pair, element_required=False)
    return Schema(*(t.NestedField(number, name, kinds.get(kind, headers)) for number, name, kind, _ in COLUMNS))


def partition_spec() -> PartitionSpec:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import DayTransform

    return PartitionSpec(
        PartitionField(source_id=APPENDED_ID, field_id=1000, transform=DayTransform(), name="appended_day")
    )


def sort_order() -> SortOrder:
    from pyiceberg.table.sorting import SortField, SortOrder
    from pyiceberg.transforms import IdentityTransform

    return SortOrder(*(SortField(source_id=one, transform=IdentityTransform()) for one in (LOG_ID, OFFSET_ID)))


NUMBERS = (*(one[0] for one in COLUMNS), ELEMENT_ID, HEADER_KEY_ID, HEADER_VALUE_ID)


def assigned_fields(schema: Schema) -> dict[int, int]:
    """Our numbers → field ids of a table that was just made: a catalog may give columns ids of its own."""
    names = {number: name for number, name, _, _ in COLUMNS}
    names |= {
        ELEMENT_ID: "headers.element",
        HEADER_KEY_ID: "headers.element.key",
        HEADER_VALUE_ID: "headers.element.value",
    }
    return {number: schema.find_field(name).field_id for number, name in names.items()}


def current_columns(table: Table) -> Columns:
    """Our columns as the table has them now: number → (field id, name); one that was dropped is not among them."""
    kept = json.loads(table.properties.get(FIELDS, "{}"))
    found: dict[int, tuple[int, str]] = {}
    for number in NUMBERS:
        field_id = int(kept.get(str(number), number))
        name = table.schema().find_column_name(field_id)
        if name is not None:
            found[number] = field_id, name.rpartition(".")[2]
    return found


def arrow_schema(columns: Columns, words: Collection[int] = ()) -> pa.Schema:
    """Files' columns, under the table's names and with its field ids; those of `words` come as dictionary arrays."""

    def field(number: int, kind: pa.DataType) -> pa.Field:
        field_id, name = columns[number]
        kind = WORD if number in words else kind
        metadata = {b"PARQUET:field_id": str(field_id).encode()}
        return pa.field(name, kind, nullable=number not in NEVER_NULL_NUMBERS, metadata=metadata)

    def headers() -> pa.DataType:
        pair = [(HEADER_KEY_ID, pa.string()), (HEADER_VALUE_ID, pa.binary())]
        struct = pa.struct([field(number, kind) for number, kind in pair if number in columns])
        return pa.list_(field(ELEMENT_ID, struct))

    return pa.schema(
        [
            field(number, headers() if pa.types.is_list(kind) else kind)
            for number, _, kind, _ in COLUMNS
            if number in columns
        ]
    )


def dictionary_names(columns: Columns, first: pa.RecordBatch | None) -> list[str]:
    named = [columns[number][1] for number in DICTIONARY_NUMBERS if number in columns]
    if HEADERS_ID in columns and HEADER_KEY_ID in columns:
        named.append(f"{columns[HEADERS_ID][1]}.list.element.{columns[HEADER_KEY_ID][1]}")
    if first is not None and KEY_ID in columns and _repeats(first.column(columns[KEY_ID][1])):
        named.append(columns[KEY_ID][1])
    return named


def _repeats(values: pa.Array) -> bool:
    """Whether a dictionary will be shorter: most keys name a device that sends again and again, some are all different."""
    return 2 * int(pc.count_distinct(values).as_py()) <= len(values)


def encodings(columns: Columns) -> dict[str, str]:
    return {columns[number][1]: "DELTA_BINARY_PACKED" for number in GROWING_NUMBERS if number in columns}


def statistics_names(columns: Columns) -> list[str]:
    return [columns[one[0]][1] for one in COLUMNS if one[0] in columns and one[0] not in NO_STATISTICS_NUMBERS]


class LogRows:
    """One log's rows as the table's: the decoder's own buffers under the table's types; what all rows share is made once."""

    def __init__(self, piece: Mapping[str, Any], is_filtered: bool, columns: Columns) -> None:
        self._piece, self._columns = piece, columns
        self._shared: dict[int, pa.Scalar] = {LOG_ID: pa.scalar(int(piece["log"]), pa.int64())}
        if len(piece["lanes"]) == 1 and not (is_filtered and piece["shared"]):  # no other topic is read
            topic, partition, canonical = piece["lanes"][0]
            self._shared[PARTITION_ID] = pa.scalar(int(partition), pa.int32())
            self._shared[TOPIC_ID], self._shared[KAFKA_TOPIC_ID] = pa.scalar(canonical), pa.scalar(topic)
        self._made: dict[int, pa.Array] = {}
        self.schema = arrow_schema(columns, {ORIGIN_ID, *self._shared} & {ORIGIN_ID, TOPIC_ID, KAFKA_TOPIC_ID})
        self.decoded = pa.schema(
            [
                pa.field(source, pa.int32() if number == ORIGIN_ID else kind)
                for number, _, kind, source in COLUMNS
                if source and number not in self._shared
            ]
        )

    def fits(self, piece: Mapping[str, Any]) -> bool:
        """Whether another slice's rows can go on in the same file."""
        return bool(self._piece["log"] == piece["log"] and self._piece["lanes"] == piece["lanes"])

    def table_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays: list[pa.Array] = []
        for number, _, _, source in COLUMNS:
            if number not in self._columns:
                continue
            if number in self._shared:
                arrays.append(self._repeated(number, batch.num_rows))
            elif number == APPENDED_ID:
                arrays.append(pc.divide(batch.column("stamp"), 1000).cast(TIME))
            elif number == ORIGIN_ID:
                arrays.append(pa.DictionaryArray.from_arrays(batch.column(source), ORIGINS, safe=False))
            elif number == HEADERS_ID:
                kind = self.schema.field(len(arrays)).type
                arrays.append(_headers(batch.column(source), self._columns, kind))
            else:
                arrays.append(batch.column(source))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _repeated(self, number: int, rows: int) -> pa.Array:
        made = self._made.get(number)
        if made is None or len(made) < rows:
            value, count = self._shared[number], max(rows, WRITE_ROWS)
            if value.type == pa.string():
                zeros = pa.repeat(pa.scalar(0, pa.int32()), count)
                made = pa.DictionaryArray.from_arrays(zeros, pa.array([value.as_py()], value.type))
            else:
                made = pa.repeat(value, count)
            self._made[number] = made
        return made.slice(0, rows)


def _headers(array: pa.Array, columns: Columns, kind: pa.DataType) -> pa.Array:
    """The same buffers with the table's names and ids inside."""
    pairs = array.values
    kept = [pairs.field(at) for at, number in enumerate((HEADER_KEY_ID, HEADER_VALUE_ID)) if number in columns]
    made = pa.StructArray.from_arrays(kept, fields=list(kind.value_type))
    valid, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(kind, len(array), [valid, offsets], array.null_count, array.offset, children=[made])


def parquet_writer(
    stream: Any, schema: pa.Schema, columns: Columns | None, first: pa.RecordBatch | None
) -> pq.ParquetWriter:
    """How the lake's own files are written: zstd, page indexes; of a raw table's columns we know, or see, what helps."""
    return pq.ParquetWriter(
        stream,
        schema,
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=dictionary_names(columns, first) if columns is not None else True,
        column_encoding=encodings(columns) if columns is not None else None,
        write_statistics=statistics_names(columns) if columns is not None else True,
        write_page_index=True,
        write_batch_size=WRITE_ROWS,
        store_schema=False,
    )

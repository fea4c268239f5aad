"""What a row of `format("mainstem")` is: the Kafka source's columns, then Mainstem's own, as Arrow arrays.

| column          | type                                    |                                                    |
|-----------------|-----------------------------------------|----------------------------------------------------|
| key, value      | binary                                  | as sent; null is null                              |
| topic           | string                                  | in Kafka's spelling                                |
| partition       | int                                     |                                                    |
| offset          | bigint                                  | the log's own                                      |
| timestamp       | timestamp                               | the record's time                                  |
| timestampType   | int                                     | 0 the producer's, 1 the broker's                   |
| headers         | array<struct<key:string,value:binary>>  | as a Kafka consumer sees them; null if none        |
| canonical_topic | string                                  | the topic as written, levels joined by `/`         |
| levels          | array<string>                           | its levels                                         |
| origin          | string                                  | mqtt, kafka, amqp, http, spark: how it came in     |
| content_type    | string                                  | wherever its protocol keeps it                     |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mainstem.codec.batch import decode_headers
from mainstem.codec.columns import Column, TopicRow
from mainstem.model.crossing import kafka_record
from mainstem.model.errors import InvalidArgument
from mainstem.model.origin import Origin
from mainstem.model.record import Header, Record

if TYPE_CHECKING:
    import pyarrow as pa


class RowColumn(NamedTuple):
    flag: Column
    type: str  # as Spark writes it


COLUMNS: Mapping[str, RowColumn] = {
    "key": RowColumn(Column.KEY, "binary"),
    "value": RowColumn(Column.VALUE, "binary"),
    "topic": RowColumn(Column.TOPIC, "string"),
    "partition": RowColumn(Column.PARTITION, "int"),
    "offset": RowColumn(Column.OFFSET, "bigint"),
    "timestamp": RowColumn(Column.TIMESTAMP, "timestamp"),
    "timestampType": RowColumn(Column.TIMESTAMP_TYPE, "int"),
    "headers": RowColumn(Column.HEADERS, "array<struct<key:string,value:binary>>"),
    "canonical_topic": RowColumn(Column.CANONICAL, "string"),
    "levels": RowColumn(Column.LEVELS, "array<string>"),
    "origin": RowColumn(Column.ORIGIN, "string"),
    "content_type": RowColumn(Column.CONTENT_TYPE, "string"),
}
# What the lakehouse's raw tables keep besides, to build the stored batches again.
RAW_COLUMNS: Mapping[str, RowColumn] = {
    "flags": RowColumn(Column.FLAGS, "int"),
    "stamp": RowColumn(Column.STAMP, "bigint"),
    "batch": RowColumn(Column.BATCH, "binary"),
    "stored_headers": RowColumn(Column.STORED_HEADERS, "binary"),
    "origin_number": RowColumn(Column.ORIGIN_NUMBER, "int"),
}
KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
UNREADABLE = -1  # instead of a record's flags
OWN_COLUMNS = ("canonical_topic", "levels", "origin", "content_type")


def ddl(names: Iterable[str]) -> str:
    """The columns as a schema that Spark reads."""
    return ", ".join(f"`{name}` {COLUMNS[name].type}" for name in names)


def flags_of(names: Iterable[str]) -> Column:
    """What to decode for these columns."""
    flags = Column(0)
    for name in names:
        flags |= (COLUMNS.get(name) or RAW_COLUMNS[name]).flag
    return flags


def check_schema(types: Mapping[str, str]) -> None:
    """Refuse a user's schema that is not a choice of our columns, naming every problem at once."""
    problems = []
    for name, kind in types.items():
        known = COLUMNS.get(name)
        if known is None:
            problems.append(f"there is no column {name!r}")
        elif known.type != kind:
            problems.append(f"column {name!r} is {known.type}, not {kind}")
    if problems:
        raise InvalidArgument(f"{'; '.join(problems)}. The columns are: {ddl(COLUMNS)}")


def record_batch(taken: Mapping[int, tuple[Any, ...]], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """The decoder's buffers as an Arrow batch of exactly this schema; nothing is copied."""
    import pyarrow as pa

    arrays = []
    for field in schema:
        column = (COLUMNS.get(field.name) or RAW_COLUMNS[field.name]).flag
        arrays.append(_array(column, taken[column], rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def unreadable_row(frame: bytes, offset: int, topic: TopicRow, schema: pa.Schema) -> pa.RecordBatch:
    """The one row of a batch whose records cannot be read: its frame, and flags that no record has."""
    import pyarrow as pa

    base, stamp = (int.from_bytes(frame[at : at + 8], "big", signed=True) for at in (16, 24))
    known: dict[str, Any] = {
        "offset": offset,
        "stamp": stamp + offset - base,
        "timestamp": stamp // 1000,  # when it was appended; what it says of its own time is as doubtful as the rest
        "timestampType": 1,
        "topic": topic[0].decode(),
        "canonical_topic": topic[1].decode(),
        "partition": topic[3],
        "origin": Origin(frame[6]).name.lower(),
        "origin_number": frame[6],
        "flags": UNREADABLE,
        "batch": frame,
    }
    return pa.RecordBatch.from_arrays([pa.array([known.get(one.name)], one.type) for one in schema], schema=schema)


def _array(column: Column, buffers: tuple[Any, ...], rows: int, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if column == Column.HEADERS:
        valid, offsets, nulls, count, names, values = buffers
        items = kind.value_type
        pairs = pa.StructArray.from_arrays(
            [_binary(items.field(0).type, count, names), _binary(items.field(1).type, count, values)],
            fields=[items.field(0), items.field(1)],
        )
        return pa.Array.from_buffers(kind, rows, [_buffer(valid), _buffer(offsets)], nulls, children=[pairs])
    if column == Column.LEVELS:
        offsets, count, levels = buffers
        return pa.Array.from_buffers(
            kind, rows, [None, _buffer(offsets)], 0, children=[_binary(kind.value_type, count, levels)]
        )
    if len(buffers) == 1:
        return pa.Array.from_buffers(kind, rows, [None, _buffer(buffers[0])], 0)
    return _binary(kind, rows, buffers)


def _binary(kind: pa.DataType, rows: int, buffers: tuple[Any, ...]) -> pa.Array:
    import pyarrow as pa

    valid, offsets, data, nulls = buffers
    return pa.Array.from_buffers(kind, rows, [_buffer(valid), _buffer(offsets), _buffer(data)], nulls)


def _buffer(data: Any) -> pa.Buffer | None:
    import pyarrow as pa

    return None if data is None else pa.py_buffer(data)


def kafka_headers(origin: int, count: int, encoded: bytes) -> Sequence[Header]:
    """Headers as a Kafka consumer would see them; how the record came in is a column of its own."""
    record = Record(None, None, decode_headers(encoded, count), origin=Origin(origin))
    return [header for header in kafka_record(record).headers if header[0] != b"ms-origin"]

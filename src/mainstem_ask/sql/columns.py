"""The columns that SQL sees: those of `format("mainstem")`, then the value as text and as JSON.

`text` is null where the value is not UTF-8, `json` where it is not JSON. `offset` is first in the scan, because DuckDB
asks for the first column when it only counts; the view in front of it has the order that Spark shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

TIME = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
STORED = pa.schema(
    [
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("timestamp", TIME),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
        ("canonical_topic", pa.string()),
        ("levels", pa.list_(pa.string())),
        ("origin", pa.string()),
        ("content_type", pa.string()),
    ]
)
SCANNED = STORED.append(pa.field("text", pa.string()))
SHOWN = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
    "canonical_topic",
    "levels",
    "origin",
    "content_type",
    "text",
)


def stored_of(names: Sequence[str]) -> pa.Schema:
    """What to decode for these columns."""
    wanted = {"value" if name == "text" else name for name in names} or {"offset"}
    return pa.schema([field for field in STORED if field.name in wanted])


def with_text(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    if "text" not in names:
        return batch
    return batch.append_column("text", text_of(batch.column("value")))


def text_of(values: pa.Array) -> pa.Array:
    """Bad UTF-8 in a text column would end DuckDB, not only the statement: such values are null."""
    try:
        return pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(value.as_py()) for value in values], pa.string())


def _text(value: bytes | None) -> str | None:
    try:
        return value.decode() if value is not None else None
    except UnicodeDecodeError:
        return None

"""The columns that SQL sees: those of `format("mainstem")`, then the value as text and as JSON.

`text` is null where the value is not UTF-8, `json` where it is not JSON; it is cast from `json_text`, in which values that a
serialiser of the registry wrote are decoded. `offset` is first in the scan, because DuckDB asks for the first column when it
only counts; the view in front of it has the order that Spark shows.

A field of the JSON that a statement names by a constant path is a column of its own, made where the rows are decoded (see
`statement.with_fields`): its name is what DuckDB would call the expression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem_ask.json_field import Path, texts_at
from mainstem_pipeline.serialised import Serialised

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
SCANNED = STORED.append(pa.field("text", pa.string())).append(pa.field("json_text", pa.string()))
MADE = ("text", "json_text")  # of the value
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


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the JSON as text, as DuckDB would make it from `json`."""

    path: Path
    sql: str  # of `text`, for what the scanner leaves to DuckDB


Fields = Mapping[str, Field]  # name of the column → field


def scanned_with(fields: Fields) -> pa.Schema:
    return pa.schema([*SCANNED, *(pa.field(name, pa.string()) for name in fields)])


def stored_of(names: Sequence[str], fields: Fields) -> pa.Schema:
    """What to decode for these columns."""
    wanted = {"value" if name in MADE or name in fields else name for name in names} or {"offset"}
    return pa.schema([field for field in STORED if field.name in wanted])


def with_made(batch: pa.RecordBatch, names: Sequence[str], fields: Fields, serialised: Serialised) -> pa.RecordBatch:
    """With the columns that are not stored."""
    if "text" in names:
        batch = batch.append_column("text", text_of(batch.column("value")))
    for name in names:
        if name in fields:
            batch = batch.append_column(name, field_of(batch.column("value"), fields[name], serialised))
        elif name == "json_text":
            batch = batch.append_column(name, text_of(serialised.plain(batch.column("value"))))
    return batch


def field_of(values: pa.Array, field: Field, serialised: Serialised | None = None) -> pa.Array:
    """What a serialiser wrote begins with a byte that is not JSON, so it is among what the scanner leaves."""
    made, left = texts_at(values, field.path)
    if left is None:
        return made
    import duckdb

    taken = values.take(pa.array(np.flatnonzero(left)))
    rows = pa.table({"text": text_of(serialised.plain(taken) if serialised is not None else taken)})
    with duckdb.connect(":memory:") as aside:
        aside.register("rows", rows)
        parsed = aside.execute(f"select {field.sql} from rows").to_arrow_table().column(0).combine_chunks()
    return pc.replace_with_mask(made, pa.array(left), parsed.cast(pa.string()))


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

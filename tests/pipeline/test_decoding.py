"""Avro values that JSON has no words for, and those that do not fit their column."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, Any

from mainstem_pipeline.pipeline.decoding import RECORD_COLUMNS, decoded
from mainstem_pipeline.pipeline.model import Decode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "either", "type": ["null", "int", "string"]},
        {"name": "bytes", "type": "bytes"},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
    ],
}


def encoded(**fields: Any) -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), fields)
    return out.getvalue()


def test_avro_values_are_columns_or_bad_records_but_never_silently_null(spark: SparkSession) -> None:
    local = datetime.fromisoformat("2026-01-31T08:00:00")
    rest = {"bytes": "größe".encode(), "at": time(8, 30), "local": local}
    values = [encoded(either=1, **rest), encoded(either="text", **rest), encoded(either=None, **rest)]
    source = {"key": "binary", "value": "binary", "canonical_topic": "string", "levels": "array<string>"}
    source |= {"partition": "int", "offset": "bigint", "timestamp": "timestamp", "origin": "string"}
    source |= {"headers": "array<struct<key:string,value:binary>>"}
    assert set(source) == set(RECORD_COLUMNS.values())
    now = datetime.now(UTC)
    rows = [(None, value, "t", ["t"], 0, n, now, "kafka", None) for n, value in enumerate(values)]
    records = spark.createDataFrame(rows, ", ".join(f"`{name}` {kind}" for name, kind in source.items()))
    found = decoded(records, Decode("avro", json.dumps(SCHEMA)), json.dumps(SCHEMA), ()).orderBy("_offset").collect()
    assert [row["_reason"] is None for row in found] == [True, False, True]
    assert "does not fit the columns" in found[1]["_reason"]
    assert [row["either"] for row in (found[0], found[2])] == [1, None]
    assert all(row["bytes"] == "größe" and row["at"] == "08:30:00" for row in (found[0], found[2]))
    assert all(row["local"] == local for row in (found[0], found[2]))

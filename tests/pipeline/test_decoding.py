"""Values as columns of their own types; those that do not fit say which field does not."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from mainstem_pipeline.pipeline.decoding import RECORD_COLUMNS, decoded
from mainstem_pipeline.pipeline.model import Decode
from mainstem_pipeline.pipeline.reasons import csv_reason, json_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "either", "type": ["null", "int", "string"]},
        {"name": "bytes", "type": "bytes"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "id", "type": {"type": "fixed", "name": "id4", "size": 4}},
        {"name": "more", "type": {"type": "array", "items": "id4"}},
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
    rest = {"bytes": b"\xff\x00", "at": time(8, 30), "local": local, "id": b"\x00\x01\x02\xff"}
    rest |= {"price": Decimal("12.30"), "more": [b"abcd"]}
    values = [encoded(either=1, **rest), encoded(either="text", **rest), encoded(either=None, **rest)]
    values += [values[0][:4], values[0] + b"!"]
    source = {"key": "binary", "value": "binary", "canonical_topic": "string", "levels": "array<string>"}
    source |= {"partition": "int", "offset": "bigint", "timestamp": "timestamp", "origin": "string"}
    source |= {"headers": "array<struct<key:string,value:binary>>"}
    assert set(source) == set(RECORD_COLUMNS.values())
    now = datetime.now(UTC)
    rows = [(None, value, "t", ["t"], 0, n, now, "kafka", None) for n, value in enumerate(values)]
    records = spark.createDataFrame(rows, ", ".join(f"`{name}` {kind}" for name, kind in source.items()))
    found = decoded(records, Decode("avro", json.dumps(SCHEMA)), json.dumps(SCHEMA), ()).orderBy("_offset").collect()
    assert [row["_reason"] for row in found] == [
        None,
        "field either: expected int32, found str 'text'",
        None,
        "field bytes: no bytes at byte 2: Expected 2 bytes, read 1",
        "the value is not avro of this schema: 1 bytes are left behind the last field",
    ]
    assert [row["either"] for row in (found[0], found[2])] == [1, None]
    assert all(bytes(row["bytes"]) == b"\xff\x00" and row["at"] == "08:30:00" for row in (found[0], found[2]))
    assert (found[0]["price"], bytes(found[0]["id"])) == (Decimal("12.30"), b"\x00\x01\x02\xff")
    assert [bytes(one) for one in found[0]["more"]] == [b"abcd"]
    assert all(row["local"] == local for row in (found[0], found[2]))


STRUCT = {
    "type": "struct",
    "fields": [
        {"name": "n", "type": "integer"},
        {"name": "at", "type": "timestamp"},
        {"name": "inner", "type": {"type": "struct", "fields": [{"name": "ok", "type": "boolean"}]}},
        {"name": "list", "type": {"type": "array", "elementType": "double"}},
        {"name": "text", "type": "string"},
    ],
}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"n": 1, "at": "2026-01-31T08:00:00Z", "inner": {"ok": true}, "list": [1, 2.5], "text": {}}', None),
        (b'{"n": 1.5}', "field n: expected integer, found number 1.5"),
        (b'{"n": 3000000000}', "field n: expected integer, found number 3000000000"),
        (b'{"at": "yesterday"}', 'field at: expected timestamp, found string "yesterday"'),
        (b'{"inner": {"ok": "yes"}}', 'field inner.ok: expected boolean, found string "yes"'),
        (b'{"list": [1, "two"]}', 'field list[1]: expected double, found string "two"'),
        (b'{"list": {}}', "field list: expected an array, found object {}"),
        (b"[1]", "the value is not a json object: found array [1]"),
        (b'{"n": ', 'the value is not json: Expecting value at character 6: {"n": '),
        (b"\xff", "the value is not UTF-8 text: byte 0"),
        (None, "the value is null"),
    ],
)
def test_a_json_value_that_does_not_fit_names_the_field_what_was_expected_and_what_was_found(
    value: bytes | None, reason: str | None
) -> None:
    assert json_reason(value, STRUCT) == reason


def test_a_csv_value_that_does_not_fit_names_the_field() -> None:
    schema = {"fields": [{"name": "id", "type": "string"}, {"name": "x", "type": "double"}]}
    assert csv_reason(b"a;1.5", schema, {"sep": ";"}) is None
    assert csv_reason(b"a;b", schema, {"sep": ";"}) == "field x: expected double, found b"
    assert csv_reason(b"a", schema, {"sep": ";"}) == "expected 2 fields, found 1: a"

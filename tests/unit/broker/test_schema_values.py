"""Values by a schema: what fits, what does not, and which schemas values are not checked by."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.broker.schemas.formats import format_of
from mainstem.broker.schemas.records import Schema
from mainstem.broker.schemas.values import Codec, Misfit, Unchecked, compiled, schema_id_of

RECORD = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": "long"},
        {"name": "b", "type": {"type": "array", "items": "string"}},
        {"name": "c", "type": ["null", "double"], "default": None},
    ],
}
PROTO = """syntax = "proto3"; package p;
message M { int64 a = 1; string b = 2; message Inner { int32 n = 1; } }
message Second { bool yes = 1; }"""


def codec(kind: str, text: Any) -> Codec:
    text = text if isinstance(text, str) else json.dumps(text)
    data = format_of("PROTOBUF").compiled(text, []).SerializeToString() if kind == "PROTOBUF" else b""
    return compiled(Schema(kind, text, descriptors=base64.b64encode(data).decode()), [])


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def fits(check: Any, value: bytes) -> bool:
    try:
        check(value)
    except Misfit:
        return False
    return True


def test_avro_is_whole_or_it_does_not_fit() -> None:
    one, value = codec("AVRO", RECORD), {"a": 7, "b": ["x", "yz"], "c": 1.5}
    data = avro(RECORD, value)
    assert one.framed(data) == value
    assert [n for n in range(len(data)) if fits(one.framed, data[:n])] == []
    assert not fits(one.framed, data + b"\0")
    assert fits(one.bare, b'{"a": 7, "b": [], "c": null}')
    assert not fits(one.bare, b'{"a": "7", "b": [], "c": null}')
    assert not fits(one.bare, b'{"b": []}') and not fits(one.bare, b"\xff") and not fits(one.bare, b"[" * 100_000)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_answered(data: bytes) -> None:
    for one in CODECS:
        fits(one.framed, data)
        fits(one.bare, data)
    schema_id_of(data)


def test_protobuf_names_its_message_by_indexes() -> None:
    one = codec("PROTOBUF", PROTO)
    assert one.framed(b"\0\x08\x07\x12\x01x") == {"a": "7", "b": "x"}
    assert one.framed(b"\x02\x02\x08\x01") == {"yes": True}, "the second"
    assert one.framed(b"\x04\x00\x00\x08\x05") == {"n": 5}, "one inside the first"
    assert not fits(one.framed, b"\x02\x08\x08\x01"), "there is no fifth"
    assert not fits(one.framed, b"\0\x12\x05x"), "cut"
    assert fits(one.bare, b"\x08\x07") and fits(one.bare, b'{"a": 7}') and not fits(one.bare, b'{"z": 7}')
    assert not fits(one.framed, b"\xff" * 9) and not fits(one.framed, b"")


def test_json_says_where_it_does_not_fit() -> None:
    one = codec("JSON", {"type": "object", "properties": {"a": {"items": {"type": "integer"}}}})
    with pytest.raises(Misfit, match="at /a/1: "):
        one.bare(b'{"a": [1, "x"]}')
    assert one.bare(b'{"a": [1, 2]}') == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        ("AVRO", {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}),
        ("AVRO", {"type": "array", "items": "null"}),
        ("AVRO", {"type": "array", "items": {"type": "record", "name": "E", "fields": []}}),
        ("JSON", {"properties": {"a": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}}),
        ("JSON", {"allOf": [{"properties": {"a": {"$ref": "#"}}}, {"additionalProperties": {"$ref": "#"}}]}),
        (
            "JSON",
            {
                "$ref": "#/$defs/d0",
                "$defs": {
                    **{f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)},
                    "d40": {"type": "string"},
                },
            },
        ),
    ],
)
def test_a_schema_that_values_could_stall_is_not_used_to_check(kind: str, schema: Any) -> None:
    with pytest.raises(Unchecked):
        codec(kind, schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/t", "$defs": {"t": {"properties": {"l": {"$ref": "#/$defs/t"}, "r": {"$ref": "#/$defs/t"}}}}},
        {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]},
        {"type": "object", "patternProperties": {"^a": {"type": "string"}}, "additionalProperties": False},
    ],
)
def test_trees_and_lists_are(schema: Any) -> None:
    assert codec("JSON", schema)


CODECS = [codec("AVRO", RECORD), codec("PROTOBUF", PROTO), codec("JSON", {"type": "object"})]


def nested(levels: int, leaf: str) -> Any:
    """A record that holds another twice, which holds another twice."""
    schema: Any = {"type": "record", "name": "R0", "fields": [{"name": "a", "type": leaf}]}
    for level in range(1, levels):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{level - 1}"}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return schema


@pytest.mark.parametrize("leaf", ["int", "null"])
def test_records_that_nobody_could_read_are_not_used_to_check(leaf: str) -> None:
    """Weighing them takes no longer than their text is; a value of `null` leaves would have no bytes at all."""
    with pytest.raises(Unchecked):
        codec("AVRO", nested(60, leaf))
    assert codec("AVRO", nested(5, leaf))


def test_items_of_hardly_any_bytes_are_not_read_by_the_million() -> None:
    item = {
        "type": "record",
        "name": "I",
        "fields": [{"name": "n", "type": "int"}, {"name": "r", "type": nested(9, "null")}],
    }
    with pytest.raises(Unchecked):
        codec("AVRO", {"type": "array", "items": item})


@pytest.mark.parametrize(
    ("kind", "schema", "item"),
    [
        ("JSON", {"items": {"anyOf": [*({"const": one} for one in range(2000)), True]}}, "9999"),
        ("JSON", {"items": {"allOf": [{"type": "integer"}] * 2000}}, "9999"),
        (
            "AVRO",
            {"type": "array", "items": [{"type": "enum", "name": f"E{n}", "symbols": [f"a{n}"]} for n in range(1000)]},
            '"a999"',
        ),
    ],
)
def test_a_text_whose_parts_have_thousands_of_alternatives_each_is_refused(kind: str, schema: Any, item: str) -> None:
    check = codec(kind, schema).bare
    assert fits(check, f"[{item}]".encode())
    with pytest.raises(Misfit, match="steps"):
        check(("[" + ",".join([item] * 30_000) + "]").encode())


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (
            "JSON",
            {"items": {"type": "object", "properties": {f"p{n}": {"type": ["integer", "null"]} for n in range(300)}}},
        ),
        ("AVRO", {"type": "array", "items": "long"}),
    ],
)
def test_a_large_text_of_a_plain_schema_is_checked(kind: str, schema: Any) -> None:
    text = json.dumps(
        [{f"p{n}": n for n in range(20)} for _ in range(1_200)] if kind == "JSON" else list(range(20_000))
    )
    assert fits(codec(kind, schema).bare, text.encode())

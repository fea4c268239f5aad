"""The rules by which a new version of a schema may follow an old one, as Confluent's registry publishes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mainstem.broker.schemas.formats import SchemaError, Source, format_of


def avro(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


A, B = {"name": "a", "type": "int"}, {"name": "b", "type": "string"}
B_DEFAULT = {**B, "default": ""}
LONG = {"name": "a", "type": "long"}
# (new, old, what a reader with the new schema says of data of the old)
AVRO_TABLE = [
    (avro(A, B_DEFAULT), avro(A), ""),
    (avro(A, B), avro(A), "READER_FIELD_MISSING_DEFAULT_VALUE"),
    (avro(A), avro(A, B), ""),
    (avro(LONG), avro(A), ""),
    (avro(A), avro(LONG), "TYPE_MISMATCH"),
    ('["int","string"]', '"int"', ""),
    ('"int"', '["int","string"]', "TYPE_MISMATCH"),
    ('{"type":"enum","name":"E","symbols":["x","y"]}', '{"type":"enum","name":"E","symbols":["x"]}', ""),
    (
        '{"type":"enum","name":"E","symbols":["x"]}',
        '{"type":"enum","name":"E","symbols":["x","y"]}',
        "MISSING_ENUM_SYMBOLS",
    ),
    (
        '{"type":"enum","name":"E","symbols":["x"],"default":"x"}',
        '{"type":"enum","name":"E","symbols":["x","y"],"default":"x"}',
        "",
    ),
    ('{"type":"fixed","name":"F","size":4}', '{"type":"fixed","name":"F","size":8}', "FIXED_SIZE_MISMATCH"),
    (avro(A).replace('"R"', '"S"'), avro(A), "NAME_MISMATCH"),
]


def shape(properties: dict[str, Any], *, required: tuple[str, ...] = (), additional: Any = None) -> str:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": list(required)}
    if additional is not None:
        schema["additionalProperties"] = additional
    return json.dumps(schema)


INT, TEXT = {"type": "integer"}, {"type": "string"}
JSON_TABLE = [
    (shape({"a": INT, "b": TEXT}, additional=False), shape({"a": INT}, additional=False), ""),
    (shape({"a": INT, "b": TEXT}), shape({"a": INT}), "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"),
    (shape({"a": INT, "b": {}}), shape({"a": INT}), ""),
    (shape({"a": INT}), shape({"a": INT, "b": TEXT}), ""),
    (
        shape({"a": INT}, additional=False),
        shape({"a": INT, "b": TEXT}, additional=False),
        "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
    ),
    (
        shape({"a": INT, "b": TEXT}, required=("b",), additional=False),
        shape({"a": INT}, additional=False),
        "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL",
    ),
    (
        shape({"a": INT, "b": {**TEXT, "default": ""}}, required=("b",), additional=False),
        shape({"a": INT}, additional=False),
        "",
    ),
    (shape({"a": INT, "b": TEXT}, additional=TEXT), shape({"a": INT}, additional=TEXT), ""),
    (
        shape({"a": INT, "b": INT}, additional=TEXT),
        shape({"a": INT}, additional=TEXT),
        "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    ),
    (
        shape({"a": INT}, additional=TEXT),
        shape({"a": INT, "b": INT}, additional=TEXT),
        "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    ),
    (shape({"a": INT}, required=("a",)), shape({"a": INT}), "REQUIRED_ATTRIBUTE_ADDED"),
    (shape({"a": INT}), shape({"a": INT}, required=("a",)), ""),
    (shape({}, additional=False), shape({}), "ADDITIONAL_PROPERTIES_REMOVED"),
    (shape({}), shape({}, additional=False), ""),
    ('{"type":"number"}', '{"type":"integer"}', ""),
    ('{"type":"integer"}', '{"type":"number"}', "TYPE_CHANGED"),
    ('{"type":["string","null"]}', '{"type":"string"}', ""),
    ('{"type":"string"}', '{"type":["string","null"]}', "TYPE_NARROWED"),
    ('{"type":"string","maxLength":5}', '{"type":"string","maxLength":9}', "MAX_LENGTH_DECREASED"),
    ('{"type":"string","maxLength":9}', '{"type":"string","maxLength":5}', ""),
    ('{"type":"string","maxLength":9}', '{"type":"string"}', "MAX_LENGTH_ADDED"),
    ('{"type":"string"}', '{"type":"string","maxLength":9}', ""),
    ('{"type":"number","minimum":1}', '{"type":"number","minimum":0}', "MINIMUM_INCREASED"),
    ('{"type":"number","multipleOf":2}', '{"type":"number","multipleOf":4}', ""),
    ('{"type":"number","multipleOf":4}', '{"type":"number","multipleOf":2}', "MULTIPLE_OF_CHANGED"),
    ('{"type":"string","pattern":"a"}', '{"type":"string","pattern":"b"}', "PATTERN_CHANGED"),
    ('{"enum":["a","b"]}', '{"enum":["a"]}', ""),
    ('{"enum":["a"]}', '{"enum":["a","b"]}', "ENUM_ARRAY_NARROWED"),
    ('{"oneOf":[{"type":"string"},{"type":"null"}]}', '{"oneOf":[{"type":"string"}]}', ""),
    ('{"oneOf":[{"type":"string"}]}', '{"oneOf":[{"type":"string"},{"type":"null"}]}', "SUM_TYPE_NARROWED"),
    ('{"oneOf":[{"type":"string"},{"type":"null"}]}', '{"type":"string"}', ""),
    ('{"allOf":[{"type":"string"}]}', '{"allOf":[{"type":"string"},{"maxLength":3}]}', ""),
    ('{"allOf":[{"type":"string"},{"maxLength":3}]}', '{"allOf":[{"type":"string"}]}', "PRODUCT_TYPE_EXTENDED"),
    ('{"type":"array","items":{"type":"number"}}', '{"type":"array","items":{"type":"integer"}}', ""),
    ('{"type":"array","items":{"type":"integer"}}', '{"type":"array","items":{"type":"number"}}', "TYPE_CHANGED"),
    ('{"type":"array","uniqueItems":true}', '{"type":"array"}', "UNIQUE_ITEMS_ADDED"),
    (
        '{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"n":{"$ref":"#/$defs/n"}}}}}',
        '{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"n":{"$ref":"#/$defs/n"}}}}}',
        "",
    ),
    ("true", '{"type":"string"}', ""),
    ("false", '{"type":"string"}', "TYPE_CHANGED"),
]


def proto(body: str, before: str = "") -> str:
    return f'syntax = "proto3"; package p; {before} message M {{ {body} }}'


PROTOBUF_TABLE = [
    (proto("int32 a = 1; string b = 2;"), proto("int32 a = 1;"), ""),
    (proto("int32 a = 1;"), proto("int32 a = 1; string b = 2;"), ""),
    (proto("int64 a = 1;"), proto("int32 a = 1;"), ""),
    (proto("string a = 1;"), proto("int32 a = 1;"), "FIELD_SCALAR_KIND_CHANGED"),
    (proto("bytes a = 1;"), proto("string a = 1;"), ""),
    (proto("sint32 a = 1;"), proto("int32 a = 1;"), "FIELD_SCALAR_KIND_CHANGED"),
    (proto("int32 renamed = 1;"), proto("int32 a = 1;"), ""),
    (proto("repeated int32 a = 1;"), proto("int32 a = 1;"), "FIELD_NUMERIC_LABEL_CHANGED"),
    (proto("repeated string a = 1;"), proto("string a = 1;"), ""),
    (proto("int32 a = 1;"), proto("int32 a = 1;", "message N {}"), "MESSAGE_REMOVED"),
    (proto("int32 a = 1;", "message N {}"), proto("int32 a = 1;"), ""),
    (
        proto("O a = 1;", "message N {} message O {}"),
        proto("N a = 1;", "message N {} message O {}"),
        "FIELD_NAMED_TYPE_CHANGED",
    ),
    (proto("int32 a = 1;", "message N {}"), proto("N a = 1;", "message N {}"), "FIELD_KIND_CHANGED"),
    (proto("oneof o { int32 a = 1; }"), proto("oneof o { int32 a = 1; int32 b = 2; }"), "ONEOF_FIELD_REMOVED"),
    (proto("oneof o { int32 a = 1; int32 b = 2; }"), proto("oneof o { int32 a = 1; }"), ""),
    (proto("oneof o { int32 a = 1; }"), proto("int32 a = 1;"), ""),
    (
        proto("oneof o { int32 a = 1; int32 b = 2; }"),
        proto("int32 a = 1; int32 b = 2;"),
        "MULTIPLE_FIELDS_MOVED_TO_ONEOF",
    ),
    (proto("map<string, int64> a = 1;"), proto("map<string, int32> a = 1;"), ""),
    (proto("map<string, string> a = 1;"), proto("map<string, int32> a = 1;"), "FIELD_SCALAR_KIND_CHANGED"),
    (proto("int32 a = 1;").replace("package p", "package q"), proto("int32 a = 1;"), "PACKAGE_CHANGED"),
]
TABLES = [
    pytest.param(kind, new, old, expected, id=f"{kind} {index} {expected or 'fits'}")
    for kind, table in (("AVRO", AVRO_TABLE), ("JSON", JSON_TABLE), ("PROTOBUF", PROTOBUF_TABLE))
    for index, (new, old, expected) in enumerate(table)
]


@pytest.mark.parametrize(("kind", "new", "old", "expected"), TABLES)
def test_a_new_version_reads_old_data_or_says_why_not(kind: str, new: str, old: str, expected: str) -> None:
    tool = format_of(kind)
    found = tool.differences(tool.parse(new, []), tool.parse(old, []))
    assert (not found) if not expected else (found and all(expected in one for one in found)), found


@pytest.mark.parametrize(("kind", "new"), sorted({(kind, new) for kind, new, _, _ in (one.values for one in TABLES)}))
def test_every_schema_gets_along_with_itself_and_has_a_normal_form(kind: str, new: str) -> None:
    tool = format_of(kind)
    assert tool.differences(tool.parse(new, []), tool.parse(new, [])) == []
    _, normal = tool.canonical(new, [])
    assert tool.canonical(normal, [])[1] == normal
    assert tool.differences(tool.parse(normal, []), tool.parse(new, [])) == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("AVRO", "{"),
        ("AVRO", '{"type":"record","name":"R"}'),
        ("AVRO", '{"type":"recor","name":"R","fields":[]}'),
        ("AVRO", '"nothing"'),
        ("JSON", "[]"),
        ("JSON", '{"type":"strin"}'),
        ("JSON", '{"$ref":"http://127.0.0.1:1/x.json"}'),
        ("JSON", '{"$ref":"file:///etc/passwd"}'),
        ("JSON", '{"type":"string","pattern":"("}'),
        ("JSON", "[" * 100_000),
        ("PROTOBUF", 'syntax = "proto3"; message M { int32 a = 1 }'),
        ("PROTOBUF", 'syntax = "proto3"; import "/etc/passwd"; message M {}'),
        ("PROTOBUF", 'syntax = "proto3"; import "../../etc/passwd"; message M {}'),
        ("PROTOBUF", 'syntax = "proto3"; message M { Missing a = 1; }'),
    ],
)
def test_what_is_no_schema_is_refused(kind: str, text: str) -> None:
    with pytest.raises(SchemaError):
        format_of(kind).parse(text, [])


@pytest.mark.parametrize("name", ["/etc/x", "../x", "", "a/../../x"])
def test_a_reference_cannot_name_a_file_elsewhere(name: str) -> None:
    with pytest.raises(SchemaError):
        format_of("PROTOBUF").parse(proto("int32 a = 1;"), [Source(name, proto("int32 a = 1;"))])


def test_references_are_found_by_the_names_that_each_format_uses() -> None:
    part = 'syntax = "proto3"; package q; message N { int32 a = 1; }'
    assert format_of("PROTOBUF").parse(proto("q.N n = 1;", 'import "q/n.proto";'), [Source("q/n.proto", part)])
    assert format_of("JSON").parse('{"$ref":"place.json"}', [Source("place.json", '{"type":"string"}')])
    named = '{"type":"record","name":"N","namespace":"q","fields":[]}'
    assert format_of("AVRO").parse(avro({"name": "n", "type": "q.N"}), [Source("q.N", named)])

"""What a quick look takes, the schema's library takes too: random schemas, values, and bytes changed at random."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import fastavro
import pytest

from mainstem.broker.schemas.formats.quick import avro_quick, json_quick
from mainstem.broker.schemas.records import AVRO, JSON, Schema
from mainstem.broker.schemas.values import Codec, Misfit, Unchecked, compiled

BYTES_MAX = 1 << 18
HEAD = b"\0\0\0\0\7"
TEXTS = ("", "a", "grün", "x" * 20, "語\U0001f600", "\x7f")
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


def judged(codec: Codec, payload: bytes) -> bool:
    try:
        codec.framed(payload)
    except Misfit:
        return False
    return True


class AvroMaker:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.names = rng, 0

    def schema(self, depth: int = 0) -> Any:
        kind = self.rng.choice(
            [*PRIMITIVES, *(["record", "array", "map", "union"] if depth < 3 else []), "enum", "fixed", "time"]
        )
        self.names += 1
        number = self.names
        if kind == "record":
            fields = [{"name": f"f{n}", "type": self.schema(depth + 1)} for n in range(self.rng.randrange(1, 4))]
            return {"type": "record", "name": f"R{number}", "fields": fields}
        if kind == "array":
            return {"type": "array", "items": self.schema(depth + 1)}
        if kind == "map":
            return {"type": "map", "values": self.schema(depth + 1)}
        if kind == "union":
            return self.rng.choice([["null", "string"], ["long", "null", "string"], ["null", "double"]])
        if kind == "enum":
            return {"type": "enum", "name": f"E{number}", "symbols": ["A", "B", "C"]}
        if kind == "fixed":
            return {"type": "fixed", "name": f"F{number}", "size": self.rng.randrange(1, 9)}
        if kind == "time":
            return {"type": "long", "logicalType": self.rng.choice(["timestamp-millis", "timestamp-micros"])}
        return kind

    def value(self, schema: Any) -> Any:
        rng = self.rng
        if isinstance(schema, list):
            return self.value(rng.choice(schema))
        kind = schema if isinstance(schema, str) else schema["type"]
        match kind:
            case "record":
                return {field["name"]: self.value(field["type"]) for field in schema["fields"]}
            case "array":
                return [self.value(schema["items"]) for _ in range(rng.randrange(4))]
            case "map":
                return {f"k{n}": self.value(schema["values"]) for n in range(rng.randrange(3))}
            case "enum":
                return rng.choice(schema["symbols"])
            case "fixed":
                return rng.randbytes(schema["size"])
        return {
            "null": lambda: None,
            "boolean": lambda: rng.random() < 0.5,
            "int": lambda: rng.randrange(-(1 << 31), 1 << 31),
            "long": lambda: rng.randrange(-(1 << 50), 1 << 45),
            "float": rng.random,
            "double": rng.random,
            "bytes": lambda: rng.randbytes(rng.randrange(10)),
            "string": lambda: rng.choice(TEXTS),
        }[kind]()


def changed(rng: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    match rng.randrange(4):
        case 0 if made:
            made[rng.randrange(len(made))] = rng.randrange(256)
        case 1:
            del made[rng.randrange(len(made) + 1) :]
        case 2:
            made += rng.randbytes(rng.randrange(1, 4))
        case _:
            made.insert(rng.randrange(len(made) + 1), rng.choice([0, 1, 2, 0x80, 0xFF]))
    return bytes(made)


def test_avro_that_is_walked_is_read_by_fastavro_and_sound_values_are_walked() -> None:
    rng, walked = random.Random(3), 0
    for _ in range(150):
        maker = AvroMaker(rng)
        schema = maker.schema()
        try:
            codec = compiled(Schema(AVRO, json.dumps(schema)), [])
        except Unchecked:
            continue
        assert codec.quick is not None
        parsed = fastavro.parse_schema(schema)
        for _ in range(20):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, parsed, maker.value(schema))
            sound = out.getvalue()
            values = [HEAD + one for one in (sound, *(changed(rng, sound) for _ in range(6)))]
            unfit = codec.quick.unfit(values, HEAD, BYTES_MAX)  # type: ignore[arg-type]
            assert 0 not in unfit or not judged(codec, sound), (schema, sound)
            for place in set(range(len(values))) - set(unfit):
                walked += 1
                assert judged(codec, values[place][5:]), (schema, values[place])
    assert walked > 1_000


def test_avro_with_blocks_that_tell_their_size_other_ids_and_nothing() -> None:
    quick = avro_quick(fastavro.parse_schema({"type": "array", "items": "string"}), {})
    assert quick is not None
    sized = b"\x01\x04\x02a" + b"\0"  # a block of one item in two bytes
    values = [
        HEAD + sized,
        HEAD + b"\0",
        None,
        b"",
        b"\0\0\0\0\x08\0",
        HEAD[:3],
        HEAD + b"\xff" * 12,
        HEAD + b"\2\4\xc3(",
    ]
    assert quick.unfit(values, HEAD, BYTES_MAX) == [4, 5, 6, 7]
    assert quick.unfit(values, HEAD, 6) == [0, 4, 5, 6, 7], "what is longer than allowed is looked at closely"
    assert avro_quick({"type": "bytes", "logicalType": "decimal", "precision": 4}, {}) is None


SCHEMAS: tuple[Any, ...] = (
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"type": "string", "maxLength": 3}}},
    {"type": "object", "properties": {"a": {"type": ["number", "null"]}}, "required": ["a", "z"]},
    {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {}}, "additionalProperties": False},
    {"type": "array", "items": {"type": "number", "exclusiveMaximum": 2.5}, "minItems": 1},
    {"type": "object", "properties": {"a": {"type": "string", "enum": ["x", "abc"]}, "b": {"type": "object"}}},
    {"type": "object", "properties": {"a b": {"type": "array"}, "a": {"type": "object", "required": ["z"]}}},
    {"type": ["string", "null"], "minLength": 2},
    {"type": "object"},
    {},
)
LEAVES = (
    0,
    1,
    -1,
    2.5,
    1.0,
    1e300,
    True,
    False,
    None,
    "",
    "x",
    "abc",
    "grün",
    "abcd",
    [],
    {},
    [1, 2],
    {"z": 1},
    10**25,
)


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_json_that_is_taken_at_a_look_fits_its_schema(schema: Any) -> None:
    rng = random.Random(5)
    codec = compiled(Schema(JSON, json.dumps(schema)), [])
    assert codec.quick is not None
    taken = 0
    for _ in range(1_000):
        names = ["a", "b", "z", "a b", "ü"]
        made: Any = {name: rng.choice(LEAVES) for name in rng.sample(names, rng.randrange(4))}
        value = rng.choice([made, made, made, rng.choice(LEAVES), [rng.choice(LEAVES) for _ in range(3)]])
        data = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode()
        data = changed(rng, data) if rng.random() < 0.4 else data
        if data and not codec.quick.unfit([data], b"", BYTES_MAX):
            taken += 1
            assert judged(codec, data), data
    assert taken > 5


def test_keywords_that_mean_something_else_have_no_quick_look() -> None:
    for schema in (
        {"type": "string", "pattern": "^a"},
        {"type": "string", "format": "date"},
        {"properties": {"a": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}},
        {"type": "integer", "exclusiveMinimum": True, "minimum": 0},
        {"type": "integer", "maximum": 1 << 60},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "number", "multipleOf": 3},
        {"anyOf": [{"type": "string"}]},
        True,
    ):
        assert json_quick(schema) is None, schema

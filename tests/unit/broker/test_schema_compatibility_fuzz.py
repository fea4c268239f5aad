"""A new version that may follow reads what the old one wrote: random pairs of schemas, random values of the old one.

Beside the published tables (test_schema_compatibility.py) this asks for what they mean, by libraries that know none of them.
As the original, the rules for JSON Schema look at `required` only of properties that are described.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
from typing import Any

import fastavro
import jsonschema_rs

from mainstem.broker.schemas.formats import SchemaError, format_of
from tests.unit.broker.test_schema_quick import AvroMaker

NUMBERS = ("int", "long", "float", "double")


def changed_avro(rng: random.Random, schema: Any) -> Any:
    """The schema with some of it promoted, added, dropped or simply made another."""
    if isinstance(schema, list):
        return rng.choice([schema, [*schema, "boolean"], schema[:-1], schema[::-1]])
    if schema in NUMBERS:
        return rng.choice([schema, schema, rng.choice(NUMBERS)])
    if schema in ("string", "bytes"):
        return rng.choice([schema, "string", "bytes", [schema, "null"]])
    if isinstance(schema, str) or "logicalType" in schema:
        return schema
    made = dict(schema)
    if made["type"] == "record":
        fields = [{**one, "type": changed_avro(rng, one["type"])} for one in made["fields"]]
        if rng.random() < 0.3:
            added: dict[str, Any] = {"name": "added", "type": "long"}
            fields.append(added if rng.random() < 0.3 else {**added, "default": 7})
        made["fields"] = fields[1:] if rng.random() < 0.2 else fields
    elif made["type"] == "array":
        made["items"] = changed_avro(rng, made["items"])
    elif made["type"] == "map":
        made["values"] = changed_avro(rng, made["values"])
    elif made["type"] == "enum":
        made["symbols"] = rng.choice([["A", "B", "C", "D"], ["A", "B"], ["A", "B", "C"]])
    elif made["type"] == "fixed" and rng.random() < 0.2:
        made["size"] += 1
    return made


def test_avro_that_may_follow_reads_what_was_written() -> None:
    rng, avro = random.Random(21), format_of("AVRO")
    followed = refused = 0
    for _ in range(400):
        maker = AvroMaker(rng)
        old = {"type": "record", "name": "Top", "fields": [{"name": "x", "type": maker.schema(1)}]}
        new = changed_avro(rng, old)
        try:
            found = avro.differences(avro.parse(json.dumps(new), []), avro.parse(json.dumps(old), []))
        except SchemaError:
            continue  # no schema at all
        if found:
            refused += 1
            continue
        followed += 1
        writer, reader = fastavro.parse_schema(old), fastavro.parse_schema(new)
        for _ in range(5):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, writer, maker.value(old))
            # Times beyond Python's years, and bytes promoted to text that they are not, are no matter of the schema.
            with contextlib.suppress(OverflowError, UnicodeDecodeError):
                fastavro.schemaless_reader(io.BytesIO(out.getvalue()), writer, reader)
    assert followed > 50 and refused > 20, (followed, refused)


def json_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kind = rng.choice(
        ["integer", "number", "string", "boolean", "null", *(["object", "array"] * 2 if depth < 2 else [])]
    )
    made: dict[str, Any] = {"type": kind}
    if kind == "object":
        names = rng.sample("abc", rng.randrange(1, 4))
        made["properties"] = {name: json_schema(rng, depth + 1) for name in names}
        made["required"] = [name for name in names if rng.random() < 0.4]
        if rng.random() < 0.6:
            made["additionalProperties"] = False
    elif kind == "array":
        made["items"] = json_schema(rng, depth + 1)
    elif kind in ("integer", "number") and rng.random() < 0.5:
        made |= {"minimum": rng.randrange(-5, 3), "maximum": rng.randrange(3, 9)}
    elif kind == "string" and rng.random() < 0.5:
        made |= rng.choice([{"maxLength": 3}, {"minLength": 1}, {"enum": ["a", "bb"]}])
    return made


def changed_json(rng: random.Random, schema: dict[str, Any]) -> dict[str, Any]:
    made = json.loads(json.dumps(schema))
    match rng.randrange(7):
        case 0 if made["type"] == "integer":
            made["type"] = "number"
        case 1 if "minimum" in made:
            made[rng.choice(["minimum", "maximum"])] += rng.choice([-2, 2])
        case 2 if "properties" in made:
            made["properties"]["z"] = json_schema(rng, 2)
        case 3 if made.get("properties"):
            made["properties"].pop(rng.choice(list(made["properties"])))
        case 4 if "required" in made:
            made["required"] = [name for name in made["properties"] if rng.random() < 0.5]
        case 5 if "enum" in made:
            made["enum"] = rng.choice([["a"], ["a", "bb", "c"]])
        case 6 if "maxLength" in made:
            made["maxLength"] += rng.choice([-1, 1])
    for name, part in made.get("properties", {}).items():
        made["properties"][name] = changed_json(rng, part) if rng.random() < 0.5 else part
    if "items" in made:
        made["items"] = changed_json(rng, made["items"])
    return made


def json_value(rng: random.Random, schema: dict[str, Any]) -> Any:
    """Mostly one that fits."""
    match schema["type"]:
        case "object":
            parts = schema["properties"]
            kept = [name for name in parts if name in schema["required"] or rng.random() < 0.6]
            extra = {} if schema.get("additionalProperties", True) is False else {"w": rng.choice([1, "x", None])}
            return {**{name: json_value(rng, parts[name]) for name in kept}, **extra}
        case "array":
            return [json_value(rng, schema["items"]) for _ in range(rng.randrange(3))]
        case "integer":
            return rng.randrange(-6, 10)
        case "number":
            return rng.choice([1.5, 2, -3, 7.25])
        case "string":
            return rng.choice(["", "a", "bb", "abc", "abcd"])
        case "boolean":
            return rng.random() < 0.5
    return None


def test_json_schema_that_may_follow_takes_what_the_old_one_took() -> None:
    rng, json_format = random.Random(4), format_of("JSON")
    followed = refused = valid = 0
    for _ in range(1_500):
        old = json_schema(rng)
        new = changed_json(rng, old)
        if json_format.differences(json_format.parse(json.dumps(new), []), json_format.parse(json.dumps(old), [])):
            refused += 1
            continue
        followed += 1
        before, after = jsonschema_rs.validator_for(old), jsonschema_rs.validator_for(new)
        for _ in range(10):
            value = json_value(rng, old)
            if before.is_valid(value):
                valid += 1
                assert after.is_valid(value), (old, new, value)
    assert followed > 300 and refused > 100 and valid > 1_000, (followed, refused, valid)

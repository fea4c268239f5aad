"""A field of JSON found by the compiled scanner is what DuckDB and a whole parser find, for whatever bytes a value has."""

from __future__ import annotations

import json
import random
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pytest

from mainstem_ask.json_field import Kind, fields_at
from mainstem_ask.search.meaning import MISSING, at_path
from mainstem_ask.sql.columns import Field, field_of, text_of
from mainstem_ask.sql.statement import with_fields

PATHS: list[tuple[str, tuple[str | int, ...]]] = [
    ("$.a", ("a",)),
    ("$.b.a", ("b", "a")),
    ("$.b[1]", ("b", 1)),
    ("$[0]", (0,)),
    ("$.ключ", ("ключ",)),
]
ODD = [
    b"",
    b" ",
    b"null",
    b'"text"',
    b'{"a":1} ',
    b'{"a":1}x',
    b'{"a":1,}',
    b'{"a":1,"a":2}',
    b'{"\\u0061":1}',
    b'{"a":"\\n"}',
    b'{"a":"\\ud83d\\ude00","b":1}',
    b'{"b":"\\ud800","a":1}',
    b'{"a":"x\ny"}',
    b'{"a":"\xff"}',
    b'{"z":"\xc0\x80","a":1}',
    b'{"a":-0,"b":{"a":-0.0}}',
    b'{"a":1e400}',
    b'{"a":NaN}',
    b'{"a":01}',
    b'{"a":1.}',
    b'{"a":.5}',
    b'{"a":+1}',
    b'{"a":12345678901234567890123}',
    b'{"a":9007199254740993}',
    b'{"a":0.00001,"b":[1,0.1000]}',
    b'{"a":5.0,"b":{"a":100000.25}}',
    b'{"a":tru}',
    b"[" * 100 + b"]" * 100,
    b'{"a":{"x":[1, 2]},"b":[true,false,null]}',
    b'\xef\xbb\xbf{"a":1}',
    b'{"a" : "b" , "b" : { "a" : "long enough to be read sixteen bytes at a time" } }',
]


def random_document(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.randrange(10 if depth else 6)
    if kind >= 8:
        return [random_document(rng, depth - 1) for _ in range(rng.randrange(3))]
    if kind >= 6:
        return {
            rng.choice(["a", "b", "c", "ключ", 'q"']): random_document(rng, depth - 1) for _ in range(rng.randrange(4))
        }
    scalars = [None, True, rng.randrange(-5, 10**9), round(rng.uniform(-9, 9), rng.randrange(6)), rng.random() * 1e-5]
    return [*scalars, rng.choice(["", "plain", "größer", 'a"b', "x" * 40, "line\nend"])][kind]


def values() -> list[bytes]:
    rng = random.Random(3)
    made = []
    for _ in range(3000):
        document = {"a": random_document(rng), "b": random_document(rng), "ключ": random_document(rng)}
        text = json.dumps(document if rng.random() < 0.8 else [document], ensure_ascii=rng.random() < 0.5).encode()
        if rng.random() < 0.2:  # cut off, or one byte changed
            at = rng.randrange(len(text))
            text = text[:at] + (bytes([rng.randrange(256)]) + text[at + 1 :] if rng.random() < 0.5 else b"")
        made.append(text)
    return [*ODD, *made]


@pytest.mark.parametrize(("path", "steps"), PATHS)
def test_a_field_is_what_duckdb_extracts(path: str, steps: tuple[str | int, ...]) -> None:
    column = pa.array([*values(), None], pa.binary())
    expression = f"try_cast(text as json)->>'{path}'"
    rows = pa.table({"text": text_of(column), "row": pa.array(range(len(column)))})
    with duckdb.connect(":memory:") as plain:
        plain.register("rows", rows)
        wanted = [one for (one,) in plain.execute(f"select {expression} from rows order by row").fetchall()]
    found = field_of(column, Field(steps, expression)).to_pylist()
    assert [one for one in zip(column.to_pylist(), found, wanted, strict=True) if one[1] != one[2]] == []
    decided = fields_at(column, steps).kinds
    assert np.count_nonzero(decided != Kind.STRANGE) > len(column) // 3  # often nobody else is asked


@pytest.mark.parametrize(("path", "steps"), PATHS)
def test_a_decided_field_is_what_a_parser_finds(path: str, steps: tuple[str | int, ...]) -> None:
    del path
    column = pa.array(values(), pa.binary())
    fields = fields_at(column, steps)
    numbers, texts = fields.numbers(), fields.texts(fields.kinds == Kind.TEXT).to_pylist()
    for row, value in enumerate(column.to_pylist()):
        kind = fields.kinds[row]
        if kind == Kind.STRANGE:
            continue
        parsed = at_path(msgspec.json.decode(value), steps) if value else MISSING
        constants = {Kind.MISSING: MISSING, Kind.NULL: None, Kind.TRUE: True, Kind.FALSE: False}
        if kind == Kind.NESTED:
            assert isinstance(parsed, list | dict)
        elif kind in constants:
            assert parsed is constants[kind], value
        else:
            assert parsed == (numbers[row] if kind == Kind.NUMBER else texts[row]), value


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("select json->>'$.a' as s, count(*) from t group by 1", ["(json ->> '$.a')"]),
        ("select avg((json->>'$.b.c[2]')::double) from t", ["(json ->> '$.b.c[2]')"]),
        ("select json_extract_string(json, '$.a') || 'x' from t", ["json_extract_string(json, '$.a')"]),
        ("select json->>'a', json->>'$.b' from t", ["(json ->> 'a')", "(json ->> '$.b')"]),
        ("select json->>'$.a' || 'x' from t", []),  # the path is '$.ax' there
        ("select json->>'$.a'::varchar from t", []),
        ("select json->>'$.*' as s from t", []),
        ("select json, json->>'$.a' as s from t", []),  # json is asked for itself
        ("select (select json->>'$.a' from (select '{}'::json as json)) from t", []),
        ("select 'json->>''$.a''' as s from t", []),
        ("select t.json->>'$.a' as s from t", []),
    ],
)
def test_only_fields_that_surely_mean_the_logs_own_json_become_columns(statement: str, names: list[str]) -> None:
    changed, fields = with_fields(statement)
    assert list(fields) == names
    assert (changed == statement) == (not names)

"""Values into columns of a shape: what is learned, what is the rest, and that the quick way says what the slow one says."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem_pipeline.lake import fields as fields_module
from mainstem_pipeline.lake.arrays import by_name, projected
from mainstem_pipeline.lake.fields import NO_JSON, NO_OBJECT, NULL, Decoder
from mainstem_pipeline.lake.shapes import (
    COLUMNS_MAX,
    DOUBLE,
    FIXED,
    LONG,
    Fields,
    Items,
    Learner,
    fields_of,
    iceberg_fields,
    widened,
)


def learned(*values: dict[str, Any], base: Fields | None = None) -> Fields:
    learner = Learner(base or Fields())
    for one in values:
        learner.learn(one)
    return learner.fields


def decoded(shape: Fields, *values: bytes | None, learns: bool = False) -> list[dict[str, Any]]:
    columns = Decoder(shape, None, learns=learns).columns(pa.array(values, pa.binary()))
    assert columns is not None
    rows = columns.fields.to_pylist()
    rests, reasons = columns.rest.to_pylist(), columns.reasons.to_pylist()
    return [
        {**row, "_rest": json.loads(rest) if rest else None, "_reason": reason}
        for row, rest, reason in zip(rows, rests, reasons, strict=True)
    ]


def test_a_shape_grows_inside_structs_and_lists_and_keeps_the_kinds_it_has() -> None:
    shape = learned(
        {"n": 1, "at": {"room": "a"}, "tags": [1, 2], "legs": [{"x": 1}], "none": None, "empty": [], "hollow": {}},
        {"n": "many", "at": {"floor": 2}, "tags": [2.5], "legs": [{"y": True}], "at2": [[1], [2]]},
    )
    assert shape == Fields(
        {
            "n": ("n", LONG),
            "at": ("at", Fields({"room": ("room", "string"), "floor": ("floor", LONG)})),
            "tags": ("tags", Items(DOUBLE)),
            "legs": ("legs", Items(Fields({"x": ("x", LONG), "y": ("y", "boolean")}))),
            "at2": ("at2", Items(Items(LONG))),
        }
    )
    (row,) = decoded(shape, b'{"n": "many", "at": {"room": 5, "floor": 1}, "tags": [1, "x"], "empty": []}')
    assert row["n"] is None and row["at"] == {"room": None, "floor": 1} and row["tags"] is None
    assert row["_rest"] == {"n": "many", "at": {"room": 5}, "tags": [1, "x"], "empty": []}


def test_names_that_sql_has_no_room_for_get_columns_of_their_own() -> None:
    shape = learned({"a b": 1, "a": 1, "A": 2, "_offset": 3, "_rest": 4, "device-id": {"x y": "t"}, "": 1})
    assert [name for name, _ in shape.named.values()] == ["a_b", "a", "device_id", "_"]
    (row,) = decoded(shape, b'{"a b": 7, "device-id": {"x y": "u"}, "A": 2, "_offset": 3}')
    assert row["a_b"] == 7 and row["device_id"] == {"x_y": "u"} and row["_rest"] == {"A": 2, "_offset": 3}
    (quick,) = decoded(shape, b'{"a b": 7, "device-id": {"x y": "u"}}')
    assert quick["a_b"] == 7 and quick["device_id"] == {"x_y": "u"} and quick["_rest"] is None


def test_limits_hold() -> None:
    wide = learned({f"c{n}": n for n in range(COLUMNS_MAX + 10)})
    assert wide.leaves() == COLUMNS_MAX
    deep: Any = 1
    for _ in range(30):
        deep = {"x": deep}
    assert learned({"deep": deep, "n": 1}) == Fields({"n": ("n", LONG)})
    (row,) = decoded(learned({"n": 1}), b'{"n": 99999999999999999999}')
    assert row["n"] is None and row["_rest"] == {"n": 99999999999999999999}


def test_longs_become_doubles_but_for_those_that_may_not() -> None:
    before = learned({"n": 1, "s": {"m": 1}, "l": [{"k": 1}], "t": "x"})
    after = learned({"n": 1.5, "s": {"m": 2.5}, "l": [{"k": 3.5}]}, base=before)
    assert widened(before, after) == {"n", "s", "l"} and widened(before, before) == set()
    fixed = Fields({"n": ("n", FIXED)})
    assert learned({"n": 1.5}, base=fixed) == fixed
    assert decoded(fixed, b'{"n": 1.5}')[0]["_rest"] == {"n": 1.5}


def test_a_shape_is_what_its_table_says() -> None:
    from pyiceberg.schema import Schema

    shape = learned({"n": 1, "a b": {"x": [1.5]}, "l": [{"k": True}]})
    schema = Schema(*iceberg_fields(shape))
    assert fields_of(schema) == shape
    assert fields_of(schema, frozenset(["n"])).named["n"] == ("n", FIXED)
    assert fields_of(schema, None).named["n"] == ("n", FIXED)


def test_what_is_no_object_has_a_reason() -> None:
    shape = learned({"n": 1})
    values = (None, b"no json", b"[1]", b"", b'{"n": 1}{"n": 2}', b'{"n"', b": 3}", b'{"n": \n 4}', b'{"s": "\xff"}')
    rows = decoded(shape, *values)
    assert [row["_reason"] for row in rows] == [
        NULL, NO_JSON, NO_OBJECT, NO_JSON, NO_JSON, NO_JSON, NO_JSON, None, NO_JSON,
    ]  # fmt: skip
    assert rows[2]["_rest"] == {"value": [1]} and rows[7]["n"] == 4


def test_a_decoder_that_learns_says_what_its_values_need() -> None:
    decoder = Decoder(learned({"n": 1}), None, learns=True)
    decoder.columns(pa.array([b'{"n": 1}'] * 2_000, pa.binary()))
    assert decoder.grown is None
    values = [b'{"n": 1}'] * 2_000 + [b'{"n": 1, "volts": {"a": [3.3]}}'] + [b'{"n": 2}'] * 3_000
    decoder.columns(pa.array(values, pa.binary()))
    assert decoder.grown == learned({"n": 1}, {"volts": {"a": [3.3]}})


leaf = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
)
names = st.sampled_from(["a", "b", "c d", "A", "é", "_rest"])
value = st.recursive(leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))
objects = st.dictionaries(names, value, max_size=4)


@settings(max_examples=100, deadline=None)
@given(st.lists(objects, max_size=3), st.lists(objects | value, min_size=1, max_size=6))
def test_values_read_at_once_are_those_read_one_by_one(taught: list[dict[str, Any]], values: list[Any]) -> None:
    shape = learned(*taught)
    texts = pa.array([json.dumps(one).encode() for one in values], pa.binary())
    decoder = Decoder(shape, None, learns=False)
    slow = Decoder(shape, None, learns=False)
    slow._at_once = lambda texts: None  # type: ignore[method-assign,assignment]
    whole, single = decoder.columns(texts), slow.columns(texts)
    assert whole is not None
    assert single is not None
    assert whole.fields.to_pylist() == single.fields.to_pylist()
    assert whole.rest.equals(single.rest) and whole.reasons.equals(single.reasons)


@settings(max_examples=60, deadline=None)
@given(st.lists(objects, min_size=1, max_size=4))
def test_nothing_of_a_value_is_lost(values: list[dict[str, Any]]) -> None:
    """What was learned from values holds them: columns and the rest together are the value, but for nulls."""
    shape = learned(*values)
    back = {name: key for key, (name, _) in shape.named.items()}
    for given_, row in zip(values, decoded(shape, *(json.dumps(one).encode() for one in values)), strict=True):
        rest = row["_rest"] or {}
        for key, one in given_.items():
            if one is not None and not _hollow(one):
                assert key in rest or row[shape.named[key][0]] is not None, (key, row)
        assert all(back[name] in given_ for name in back if row[name] is not None)


def _hollow(value: Any) -> bool:
    return isinstance(value, dict | list) and not value


def test_projection_keeps_nulls_apart_from_what_is_empty() -> None:
    kind = pa.struct([("a", pa.int32()), ("l", pa.list_(pa.struct([("k", pa.int64())])))])
    rows: list[Any] = [{"a": 1, "l": [{"k": 1}, None]}, None, {"a": 2, "l": None}, {"a": 3, "l": []}]
    wanted = pa.struct([("l", pa.large_list(pa.struct([("new", pa.string()), ("k", pa.int64())]))), ("a", pa.int64())])
    for array, meant in ((pa.array(rows, kind), rows), (pa.array(rows, kind)[1:], rows[1:])):
        found = projected(array, wanted, by_name).to_pylist()
        assert [None if row is None else row["l"] for row in found] == [
            None
            if row is None or row["l"] is None
            else [None if item is None else {"new": None, "k": item["k"]} for item in row["l"]]
            for row in meant
        ]


@pytest.mark.parametrize("slow_rows", [1, 512])
def test_rows_stay_in_order_however_a_batch_is_halved(monkeypatch: pytest.MonkeyPatch, slow_rows: int) -> None:
    monkeypatch.setattr(fields_module, "SLOW_ROWS", slow_rows)
    values = [json.dumps({"n": n} if n % 7 else {"n": str(n)}).encode() for n in range(1_500)]
    rows = decoded(Fields({"n": ("n", LONG)}), *values)
    assert [row["n"] if row["n"] is not None else int(row["_rest"]["n"]) for row in rows] == list(range(1_500))

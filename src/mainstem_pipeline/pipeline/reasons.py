"""Why a value is none of its schema: which field, what was expected, what was found.

Spark's parsers only say that a record is malformed. What they refused is looked at once more here, record by record, for the
dead letter. Where nothing certain is found the general reason stays.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

GENERAL = "the value is no "  # how a reason begins that says no more than Spark did
SHOWN_CHARACTERS_MAX = 60
INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
FLOATS = {"float", "double"}
NOT_NUMBERS = {"NaN", "+INF", "INF", "+Infinity", "Infinity", "-INF", "-Infinity"}  # that Spark reads as numbers
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


def json_reason(value: bytes | None, schema: Mapping[str, Any]) -> str | None:
    """`schema` is a struct type as Spark writes it in JSON; None if nothing wrong is found."""
    if value is None:
        return "the value is null"
    try:
        found = json.loads(value, parse_float=Decimal)
    except UnicodeDecodeError as error:
        return f"the value is not UTF-8 text: byte {error.start}"
    except ValueError as error:
        place = getattr(error, "pos", None)
        where = f" at character {place}" if place is not None else ""
        return (
            f"the value is not json: {getattr(error, 'msg', error)}{where}: {_shown(value.decode('utf-8', 'replace'))}"
        )
    if not isinstance(found, dict):
        return f"the value is not a json object: found {_told(found)}"
    return next(_unfit(found, schema, ""), None)


def _unfit(value: Any, kind: Any, path: str) -> Iterator[str]:
    """What does not fit, the certain first."""
    if value is None:
        return
    if isinstance(kind, str):
        if not _fits(value, kind):
            yield f"field {path}: expected {kind}, found {_told(value)}"
        return
    match kind["type"]:
        case "struct":
            if not isinstance(value, dict):
                yield f"field {path}: expected an object, found {_told(value)}"
                return
            for field in kind["fields"]:
                yield from _unfit(value.get(field["name"]), field["type"], _below(path, field["name"]))
        case "array":
            if not isinstance(value, list):
                yield f"field {path}: expected an array, found {_told(value)}"
                return
            for number, one in enumerate(value):
                yield from _unfit(one, kind["elementType"], f"{path}[{number}]")
        case "map":
            if not isinstance(value, dict):
                yield f"field {path}: expected an object, found {_told(value)}"
                return
            for name, one in value.items():
                yield from _unfit(one, kind["valueType"], _below(path, name))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _fits(value: Any, kind: str) -> bool:
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if kind in INTEGERS:
        most = 1 << (INTEGERS[kind] - 1)
        return isinstance(value, int) and is_number and -most <= value < most
    if kind in FLOATS:
        return is_number or value in NOT_NUMBERS
    if kind == "boolean":
        return isinstance(value, bool)
    if _DECIMAL.fullmatch(kind):
        return is_number or (isinstance(value, str) and _is_decimal(value))
    if kind in ("timestamp", "timestamp_ntz", "date"):
        return is_number or (isinstance(value, str) and _is_time(value))
    return True  # texts take everything; other kinds are Spark's to judge


def _is_decimal(text: str) -> bool:
    try:
        Decimal(text)
    except InvalidOperation:
        return False
    return True


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def csv_reason(value: bytes | None, schema: Mapping[str, Any], options: Mapping[str, str]) -> str | None:
    if value is None:
        return "the value is null"
    separator = options.get("sep", options.get("delimiter", ","))
    text = value.decode("utf-8", "replace")
    rows = list(csv.reader(io.StringIO(text), delimiter=separator if len(separator) == 1 else ","))
    columns, found = schema["fields"], rows[0] if rows else []
    if len(found) != len(columns):
        return f"expected {len(columns)} fields, found {len(found)}: {_shown(text)}"
    for field, one in zip(columns, found, strict=True):
        if one != "" and isinstance(field["type"], str) and not _reads_as(one.strip(), field["type"]):
            return f"field {field['name']}: expected {field['type']}, found {_shown(one)}"
    return None


def _reads_as(text: str, kind: str) -> bool:
    if kind == "boolean":
        return text.lower() in ("true", "false")
    try:
        number: Any = int(text) if kind in INTEGERS else Decimal(text)
    except (ValueError, InvalidOperation):
        number = text
    return _fits(number, kind) or (kind in FLOATS and isinstance(number, Decimal))


def _told(value: Any) -> str:
    kinds: tuple[tuple[type, str], ...] = (
        (bool, "boolean"),
        (int, "number"),
        (Decimal, "number"),
        (str, "string"),
        (dict, "object"),
        (list, "array"),
    )
    kind = next(name for one, name in kinds if isinstance(value, one))
    return f"{kind} {_shown(json.dumps(value, default=str) if not isinstance(value, Decimal) else str(value))}"


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}..."


# -- Avro


def misfit(value: Any, kind: pa.DataType, path: str) -> str | None:
    """Where a decoded Avro value is not of the column's type (another branch of a union, say)."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_struct(kind) and isinstance(value, dict):
        fields = (misfit(value.get(one.name), one.type, _below(path, one.name)) for one in kind)
        return next((one for one in fields if one is not None), None)
    if pa.types.is_list(kind) and isinstance(value, list):
        items = (misfit(one, kind.value_type, f"{path}[{number}]") for number, one in enumerate(value))
        return next((one for one in items if one is not None), None)
    if pa.types.is_map(kind) and isinstance(value, dict):
        entries = (misfit(one, kind.item_type, _below(path, name)) for name, one in value.items())
        return next((one for one in entries if one is not None), None)
    try:
        pa.array([value], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        text = _shown(repr(value) if not isinstance(value, date | Decimal) else str(value))
        return f"field {path}: expected {kind}, found {type(value).__name__} {text}"
    return None


def avro_reason(value: bytes, schema: Mapping[str, Any], error: Exception) -> str:
    """The field at which decoding ends, found by reading one after the other."""
    import fastavro

    said = str(error) or type(error).__name__
    named: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # a schema that cannot be read in parts: the general reason stays
        fastavro.parse_schema(dict(schema), named_schemas=named)
        stream = io.BytesIO(value)
        for field in schema.get("fields", ()):
            place = stream.tell()
            kind = fastavro.parse_schema(field["type"], named_schemas=dict(named), _force=True)
            try:
                fastavro.schemaless_reader(stream, kind)
            except Exception as wrong:
                said = str(wrong) or type(wrong).__name__
                return f"field {field['name']}: no {_avro_kind(field['type'])} at byte {place}: {said}"
    return f"the value is not avro of this schema: {said}"


def _avro_kind(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)


# -- beside the letters


def explained(
    batch: pa.RecordBatch, form: str, schema: Mapping[str, Any], options: Mapping[str, str]
) -> pa.RecordBatch:
    import pyarrow as pa

    """Letters as they are, but for a reason that says no more than that a value is malformed."""

    def one(reason: str | None, value: bytes | None) -> str | None:
        if reason is None or not reason.startswith(GENERAL):
            return reason
        return (json_reason(value, schema) if form == "json" else csv_reason(value, schema, options)) or reason

    pairs = zip(batch.column("reason").to_pylist(), batch.column("value").to_pylist(), strict=True)
    at = batch.schema.get_field_index("reason")
    return batch.set_column(at, batch.schema.field(at), pa.array([one(*pair) for pair in pairs], pa.string()))

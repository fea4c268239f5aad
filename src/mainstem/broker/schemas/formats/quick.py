"""Quick looks at values: what passes fits its schema; what does not is judged, and refused in words, by the library.

Avro is walked in compiled code (_avro_walk.pyx). JSON is decoded by msgspec into a type made of the schema: for the keywords
below, with which both mean the same; a schema with any other has no quick look. An integer written 1.0, a null, a
date are examples of what only the library judges.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Union

import msgspec

from mainstem.broker.schemas.formats._avro_walk import Walker

DEPTH_MAX = 32
NODES_MAX = 10_000


class Quick(Protocol):
    def unfit(self, values: list[bytes | None], head: bytes, bytes_max: int) -> list[int]:
        """The places of values that must be looked at closely. What is empty or None fits."""


class _None(Exception):
    """There is no quick look by this schema."""


# -- Avro: the numbers of _avro_walk.pyx

NULL, BOOLEAN, VARINT, FIXED, BYTES, STRING, ENUM, RECORD, ARRAY, MAP, UNION = range(11)
LONG = -(1 << 63), (1 << 63) - 1
_DAY_S = 86_400
_FIRST_S = int(datetime.datetime(1, 1, 2, tzinfo=datetime.UTC).timestamp())
_LAST_S = int(datetime.datetime(9999, 12, 30, tzinfo=datetime.UTC).timestamp())
PRIMITIVES: dict[str, list[int]] = {
    "null": [NULL],
    "boolean": [BOOLEAN],
    "int": [VARINT, *LONG],
    "long": [VARINT, *LONG],
    "float": [FIXED, 4],
    "double": [FIXED, 8],
    "bytes": [BYTES],
    "string": [STRING],
}
LOGICAL = {  # what fits in Python's times, a day less on both sides
    "timestamp-millis": (_FIRST_S * 1_000, _LAST_S * 1_000),
    "timestamp-micros": (_FIRST_S * 1_000_000, _LAST_S * 1_000_000),
    "local-timestamp-millis": (_FIRST_S * 1_000, _LAST_S * 1_000),
    "local-timestamp-micros": (_FIRST_S * 1_000_000, _LAST_S * 1_000_000),
    "date": (_FIRST_S // _DAY_S, _LAST_S // _DAY_S),
    "time-millis": (0, _DAY_S * 1_000 - 1),
    "time-micros": (0, _DAY_S * 1_000_000 - 1),
}


def avro_quick(parsed: Any, known: dict[str, Any]) -> Quick | None:
    """`parsed` as fastavro has it; its arrays hold items of at least a byte and it does not hold itself."""
    program: list[int] = []
    try:
        _Program(program, known).add(parsed, 0)
        return Walker(program)
    except _None:
        return None


class _Program:
    def __init__(self, program: list[int], known: dict[str, Any]) -> None:
        self._program, self._known = program, known

    def add(self, schema: Any, depth: int) -> int:
        """Returns where its node stands. Nodes stand before those that they name."""
        if depth > DEPTH_MAX or len(self._program) > NODES_MAX:
            raise _None
        if isinstance(schema, str):
            if schema in PRIMITIVES:
                return self._put(PRIMITIVES[schema])
            return self.add(self._known[schema], depth + 1)
        if isinstance(schema, list):
            return self._with([UNION, len(schema)], schema, depth)
        kind, logical = schema["type"], schema.get("logicalType")
        if logical is not None:
            if kind not in ("int", "long") or logical not in LOGICAL:
                raise _None
            return self._put([VARINT, *LOGICAL[logical]])
        if kind in ("record", "error"):
            fields = schema["fields"]
            return self._with([RECORD, len(fields)], [field["type"] for field in fields], depth)
        if kind == "array":
            return self._with([ARRAY], [schema["items"]], depth)
        if kind == "map":
            return self._with([MAP], [schema["values"]], depth)
        if kind == "fixed":
            return self._put([FIXED, int(schema["size"])])
        return self._put([ENUM, len(schema["symbols"])]) if kind == "enum" else self.add(kind, depth + 1)

    def _put(self, node: list[int]) -> int:
        self._program += node
        return len(self._program) - len(node)

    def _with(self, head: list[int], children: list[Any], depth: int) -> int:
        at = self._put([*head, *(0 for _ in children)])
        for number, child in enumerate(children):
            self._program[at + len(head) + number] = self.add(child, depth + 1)
        return at


# -- JSON Schema

TOLD_ONLY = frozenset(
    [
        "$schema",
        "$id",
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "definitions",
        "$defs",
    ]
)
KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "enum"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "boolean": set[str](),
    "null": set[str](),
}
META = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_length",
    "maxItems": "max_length",
}
NUMBER_MAX = 1 << 52  # beyond it a bound may not be told from its neighbour


def json_quick(document: Any) -> Quick | None:
    try:
        return JsonLook(msgspec.json.Decoder(_type(document, 0)))
    except (_None, TypeError, ValueError, RecursionError):
        return None


class JsonLook(NamedTuple):
    decoder: msgspec.json.Decoder[Any]

    def unfit(self, values: list[bytes | None], head: bytes, bytes_max: int) -> list[int]:
        found, decode, size = [], self.decoder.decode, len(head)
        for place, value in enumerate(values):
            if not value:
                continue
            try:
                if len(value) > bytes_max or (size and not value.startswith(head)):
                    found.append(place)
                else:
                    decode((value[size:] if size else value).decode())  # what it passes over may be no UTF-8
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                found.append(place)
        return found


def _type(schema: Any, depth: int) -> Any:
    """A type that takes nothing which the schema refuses."""
    if depth > DEPTH_MAX or not isinstance(schema, dict):
        raise _None
    kinds = schema.get("type")
    said = schema.keys() - TOLD_ONLY - {"type"}
    if kinds is None and not said:
        return Any
    each: list[Any] = kinds if isinstance(kinds, list) else [kinds]
    if (
        not each
        or any(not isinstance(one, str) or one not in KEYWORDS for one in each)
        or said - set().union(*(KEYWORDS[one] for one in each))
    ):
        raise _None
    if "enum" in said and each != ["string"]:
        raise _None
    return Union[tuple(_of_kind(one, schema, depth) for one in each)]  # noqa: UP007


def _of_kind(kind: str, schema: dict[str, Any], depth: int) -> Any:
    if kind == "object":
        return _object(schema, depth)
    if kind == "string" and "enum" in schema:
        if not schema["enum"] or not all(isinstance(one, str) for one in schema["enum"]) or "minLength" in schema:
            raise _None
        return Literal[tuple(schema["enum"])]
    made: Any = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None, "array": list}[kind]
    if kind == "array" and "items" in schema:
        made = list[_type(schema["items"], depth + 1)]  # type: ignore[misc]
    bounds = {META[name]: schema[name] for name in META.keys() & KEYWORDS[kind] & schema.keys()}
    for one in bounds.values():
        if isinstance(one, bool) or not isinstance(one, int | float) or abs(one) > NUMBER_MAX:
            raise _None
        if kind != "number" and one != int(one):
            raise _None
    if kind != "number":
        bounds = {name: int(one) for name, one in bounds.items()}
    return Annotated[made, msgspec.Meta(**bounds)] if bounds else made


def _object(schema: dict[str, Any], depth: int) -> Any:
    others = schema.get("additionalProperties", True)
    parts, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(others, bool) or not isinstance(parts, dict) or not isinstance(required, list):
        raise _None
    if not parts and not required and others:
        return dict
    members: list[Any] = []
    names = {name: f"f{number}" for number, name in enumerate(dict.fromkeys([*parts, *required]))}
    for name, field in names.items():
        kind = _type(parts[name], depth + 1) if name in parts else Any
        members.append((field, kind) if name in required else (field, Union[kind, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007
    if any(name in required and name not in parts and not others for name in names):
        raise _None
    return msgspec.defstruct(
        "Value",
        members,
        rename={field: name for name, field in names.items()},
        kw_only=True,
        gc=False,
        forbid_unknown_fields=not others,
    )

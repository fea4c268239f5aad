"""Values and schemas: whether a value fits, and what it says as plain data. Compiled once, used by loop and threads alike.

    00 · id (4 bytes, big-endian) · payload                 the wire format of Confluent's serialisers
    Protobuf: before the payload which message of the file: a count and the indexes, as zigzag varints; 00 is the first

A value without those five bytes is taken as it is: JSON text for JSON Schema and Avro, binary or JSON for Protobuf.

What a client sends must not take long to check, nor recurse without end. So these are not checked (`Unchecked`): Avro
schemas that recurse, whose records hold each other so often that nobody could read one, or whose arrays hold items of
hardly any bytes; JSON Schemas whose work may double with each level of the data. A text does not fit that has so many
parts that a schema's alternatives might take more than CHECKS_MAX, or AVRO_CHECKS_MAX, looks at them.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from mainstem.broker.schemas.formats import MissingLibrary, SchemaError, Source
from mainstem.broker.schemas.formats.growth import checks_of_a_part, may_explode
from mainstem.broker.schemas.formats.quick import Quick, avro_quick, json_quick
from mainstem.broker.schemas.records import AVRO, JSON, PROTOBUF, Schema

MAGIC = 0
HEAD_SIZE = 5
MESSAGE_INDEXES_MAX = 32
CHECKS_MAX = 250_000  # of one JSON text: 20 ms where each is an alternative that does not fit
AVRO_CHECKS_MAX = 50_000  # of one, by a library in Python: a list of numbers fits in 100 ms
PARTS_MAX = 10_000  # of a value by an Avro schema without lists
PARTS_OF_A_BYTE_MAX = 100  # of an item of a list
Decode = Callable[[bytes], Any]


class Unchecked(Exception):
    """A schema that values cannot be checked by, and why."""


class Misfit(Exception):
    """Why a value does not fit."""


def schema_id_of(value: bytes) -> int | None:
    """Of a value in the wire format. A leading zero alone proves nothing: look the id up."""
    return int.from_bytes(value[1:HEAD_SIZE], "big") if len(value) >= HEAD_SIZE and value[0] == MAGIC else None


class Codec:
    """One schema, compiled. `framed` takes what follows the five bytes, `bare` a value without them; both return plain data
    or raise Misfit."""

    def __init__(self, framed: Decode, bare: Decode, quick: Quick | None = None, *, quick_bare: bool = False) -> None:
        self.framed = framed
        self.bare = bare
        self.quick = quick  # a quick look at values in the wire format,
        self.quick_bare = quick if quick_bare else None  # and at those without the five bytes


def compiled(schema: Schema, sources: Sequence[tuple[str, str]]) -> Codec:
    """Raises Unchecked where values cannot be checked by it."""
    named = [Source(name, text) for name, text in sources]
    try:
        return {AVRO: _avro, JSON: _json, PROTOBUF: _protobuf}[schema.kind](schema, named)
    except ImportError as error:
        raise Unchecked(f"{schema.kind} needs {error.name}: pip install 'mainstem[schemas]'") from None
    except MissingLibrary as error:
        raise Unchecked(f"{error}: pip install 'mainstem[schemas]'") from None
    except (SchemaError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise Unchecked(str(error)[:200] or type(error).__name__) from None


def _decoded(value: bytes) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Misfit(f"it is not JSON: {error}") from None
    except RecursionError:
        raise Misfit("it is nested too deeply") from None


def _parts(text: bytes) -> int:
    """Of a JSON text: no fewer than it has."""
    return 1 + sum(text.count(mark) for mark in (b",", b":", b"[", b"{"))


def _check_work(text: bytes, each: int, most: int) -> None:
    if each * len(text) > most and (work := each * _parts(text)) > most:
        raise Misfit(f"checking it may take {work} steps, up to {each} for each of its parts; at most {most} are taken")


# -- JSON Schema


def _json(schema: Schema, sources: list[Source]) -> Codec:
    from mainstem.broker.schemas.formats.json_schema import compile_schema, load

    parsed = load(schema.text, sources)
    if may_explode(parsed.document, parsed.resolver):
        raise Unchecked(
            "its checks may double with each level of a value: a recursive $ref stands in several alternatives"
        )
    validator, each = compile_schema(parsed), checks_of_a_part(parsed.document, parsed.resolver)
    fits, first_error = validator.is_valid, validator.iter_errors

    def check(value: bytes) -> Any:
        data = _decoded(value)
        _check_work(value, each, CHECKS_MAX)
        try:
            if fits(data):
                return data
            error = next(first_error(data), None)
        except ValueError as fault:
            raise Misfit(str(fault).partition("\n")[0]) from None
        place = "/".join(str(part) for part in error.instance_path) if error is not None else ""
        why = error.message if error is not None else "it does not fit"
        raise Misfit(f"at /{place}: {why[:200]}")

    return Codec(check, check, json_quick(parsed.document), quick_bare=True)


# -- Avro


def _avro(schema: Schema, sources: list[Source]) -> Codec:
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType
    from fastavro.validation import validate

    known: dict[str, Any] = {}
    text = json.loads(schema.text) if not schema.text.isidentifier() else schema.text
    try:
        for one in sources:
            fastavro.parse_schema(json.loads(one.text), named_schemas=known)
        parsed: Any = fastavro.parse_schema(text, named_schemas=known)
    except (SchemaParseException, UnknownType) as error:  # stricter than Apache's library, which registered it
        raise Unchecked(f"fastavro does not read it: {error}"[:200]) from None
    each = _weighed(parsed, known, (), {}).checks

    def framed(payload: bytes) -> Any:
        stream = io.BytesIO(payload)
        try:
            data = fastavro.schemaless_reader(stream, parsed, None)
        except Exception as error:  # the library raises whatever it meets in bytes that do not fit
            raise Misfit(f"it is not Avro of this schema: {type(error).__name__} {error}"[:200]) from None
        if stream.tell() != len(payload):
            raise Misfit(f"{len(payload) - stream.tell()} bytes follow the value")
        return data

    def bare(value: bytes) -> Any:
        data = _decoded(value)
        _check_work(value, each, AVRO_CHECKS_MAX)
        try:
            validate(data, parsed, strict=True)
        except Exception as error:
            raise Misfit(str(error).replace("\n", " ")[:200]) from None
        return data

    return Codec(framed, bare, avro_quick(parsed, known))


class _Weight(NamedTuple):
    """Of a value by an Avro schema. What stands in a list or a map is weighed by itself."""

    least: int  # bytes
    parts: int  # to be read, at most
    checks: int  # of one part, at most: a union tries its branches one after the other


def _weighed(schema: Any, known: dict[str, Any], above: tuple[str, ...], seen: dict[str, _Weight]) -> _Weight:
    """Refuses recursion, lists that claim any number of items in no bytes, and parts that hardly any bytes stand for."""
    if isinstance(schema, str):
        if schema not in known or schema in PRIMITIVES:
            return _Weight(PRIMITIVES.get(schema, 1), 1, 1)
        schema = known[schema]
    if isinstance(schema, list):
        found = [_weighed(one, known, above, seen) for one in schema]
        return _Weight(1, 1 + max((one.parts for one in found), default=0), 1 + sum(one.checks for one in found))
    kind = schema["type"]
    if kind in ("record", "error"):
        name = schema["name"]
        if name in above:
            raise Unchecked(f"record {name} holds itself")
        if name not in seen:  # it may stand in many places
            found = [_weighed(field["type"], known, (*above, name), seen) for field in schema["fields"]]
            parts, checks = 1 + sum(one.parts for one in found), 1 + max((one.checks for one in found), default=0)
            if parts > PARTS_MAX:
                raise Unchecked(f"record {name} has more than {PARTS_MAX} parts")
            seen[name] = _Weight(sum(one.least for one in found), parts, checks)
        return seen[name]
    if kind in ("array", "map"):
        item = _weighed(schema["items" if kind == "array" else "values"], known, above, seen)
        if item.least == 0 and kind == "array":
            raise Unchecked("an array of items that take no bytes")
        if item.parts > PARTS_OF_A_BYTE_MAX * max(1, item.least):
            raise Unchecked(f"items of {item.parts} parts that may take {item.least} bytes")
        return _Weight(1, 1, 1 + item.checks)
    if kind == "fixed":
        return _Weight(int(schema["size"]), 1, 1)
    return _Weight(1, 1, 1) if kind == "enum" else _weighed(kind, known, above, seen)


PRIMITIVES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


# -- Protobuf


def _protobuf(schema: Schema, sources: list[Source]) -> Codec:
    from google.protobuf import json_format
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    if not schema.descriptors:
        raise Unchecked("it was registered without its descriptors; register it again")
    files = FileDescriptorSet.FromString(base64.b64decode(schema.descriptors)).file
    pool = DescriptorPool()
    for file in files:
        pool.Add(file)
    main = pool.FindFileByName(files[-1].name)
    tops = [main.message_types_by_name[one.name] for one in files[-1].message_type]
    if not tops:
        raise Unchecked("it has no message")

    def read(kind: Any, payload: bytes) -> Any:
        message = GetMessageClass(kind)()
        try:
            message.ParseFromString(payload)
        except DecodeError as error:
            raise Misfit(f"it is not a {kind.full_name}: {error}"[:200]) from None
        return json_format.MessageToDict(message, preserving_proto_field_name=True)

    def framed(payload: bytes) -> Any:
        indexes, at = _indexes(payload)
        try:
            kind = tops[indexes[0]]
            for index in indexes[1:]:
                kind = kind.nested_types[index]
        except IndexError:
            raise Misfit(f"the schema has no message {indexes}") from None
        return read(kind, payload[at:])

    def bare(value: bytes) -> Any:
        if not value.lstrip().startswith(b"{"):
            return read(tops[0], value)
        try:
            json_format.Parse(value, GetMessageClass(tops[0])(), descriptor_pool=pool, max_recursion_depth=100)
        except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
            raise Misfit(f"it is not a {tops[0].full_name} in JSON: {error}"[:200]) from None
        return _decoded(value)

    return Codec(framed, bare)


def _indexes(payload: bytes) -> tuple[list[int], int]:
    count, at = _varint(payload, 0)
    if count == 0:
        return [0], at
    if not 0 < count <= MESSAGE_INDEXES_MAX:
        raise Misfit(f"{count} indexes of a message")
    found = []
    for _ in range(count):
        index, at = _varint(payload, at)
        if index < 0:
            raise Misfit(f"message index {index}")
        found.append(index)
    return found, at


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    raw = 0
    for place in range(5):
        if at >= len(payload):
            raise Misfit("it ends inside its message indexes")
        raw |= (payload[at] & 127) << 7 * place
        at += 1
        if payload[at - 1] < 128:
            return (raw >> 1) ^ -(raw & 1), at
    raise Misfit("a message index of more than five bytes")

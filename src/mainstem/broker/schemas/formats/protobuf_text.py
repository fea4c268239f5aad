"""A FileDescriptorProto as the text of a .proto file: what is registered in binary form, shown and compiled as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)

FIELD = FieldDescriptorProto
SCALARS = {
    FIELD.TYPE_DOUBLE: "double",
    FIELD.TYPE_FLOAT: "float",
    FIELD.TYPE_INT64: "int64",
    FIELD.TYPE_UINT64: "uint64",
    FIELD.TYPE_INT32: "int32",
    FIELD.TYPE_FIXED64: "fixed64",
    FIELD.TYPE_FIXED32: "fixed32",
    FIELD.TYPE_BOOL: "bool",
    FIELD.TYPE_STRING: "string",
    FIELD.TYPE_BYTES: "bytes",
    FIELD.TYPE_UINT32: "uint32",
    FIELD.TYPE_SFIXED32: "sfixed32",
    FIELD.TYPE_SFIXED64: "sfixed64",
    FIELD.TYPE_SINT32: "sint32",
    FIELD.TYPE_SINT64: "sint64",
}
SHOWN = {  # options that the text has
    "google.protobuf.FieldOptions": {"packed", "deprecated"},
    "google.protobuf.MessageOptions": {"map_entry"},
    "google.protobuf.EnumOptions": {"allow_alias"},
}
QUOTED = (FIELD.TYPE_STRING, FIELD.TYPE_BYTES)


def text_of(file: FileDescriptorProto) -> str:
    return "\n".join(_file(file)) + "\n"


def _file(file: FileDescriptorProto) -> Iterator[str]:
    syntax = file.syntax or "proto2"
    yield f'syntax = "{"proto3" if syntax == "editions" else syntax}";'
    if file.package:
        yield f"package {file.package};"
    public = set(file.public_dependency)
    for index, name in enumerate(file.dependency):
        yield f"import {'public ' if index in public else ''}{json.dumps(name)};"
    for option, value in file.options.ListFields():
        if _is_shown(option, value):
            yield f"option {option.name} = {json.dumps(value)};"
    for enum in file.enum_type:
        yield ""
        yield from _enum(enum, "")
    for message in file.message_type:
        yield ""
        yield from _message(message, "", syntax)
    yield from _extensions(file.extension, "", syntax)
    for service in file.service:
        yield ""
        yield from _service(service)


def options_of(part: Any, place: str = "") -> Iterator[str]:
    """Options that the text does not show, those that a file of its own declares among them: where, and their bytes."""
    for field, value in part.ListFields():
        if field.name == "options":
            rest = type(value).FromString(value.SerializeToString())
            for option, set_to in value.ListFields():
                kind = option.containing_type.full_name
                if option.name in SHOWN.get(kind, ()) or (
                    isinstance(part, FileDescriptorProto) and _is_shown(option, set_to)
                ):
                    rest.ClearField(option.name)
            if data := rest.SerializeToString(deterministic=True):
                yield f"{place}: {data.hex()}"
        elif field.message_type is not None and hasattr(value, "add"):
            for index, one in enumerate(value):
                yield from options_of(one, f"{place}/{field.name}/{index}")


def _is_shown(option: Any, value: Any) -> bool:
    """Of a whole file."""
    return not option.is_extension and isinstance(value, str | bool)


def _message(message: DescriptorProto, indent: str, syntax: str) -> Iterator[str]:
    yield f"{indent}message {message.name} {{"
    inner = indent + "  "
    entries = {one.name: one for one in message.nested_type if one.options.map_entry}
    yield from _reserved(message.reserved_range, message.reserved_name, inner)
    told: set[int] = set()
    for field in message.field:
        real = field.HasField("oneof_index") and not field.proto3_optional
        if not real:
            yield inner + _field(field, entries, syntax)
        elif field.oneof_index not in told:
            told.add(field.oneof_index)
            yield f"{inner}oneof {message.oneof_decl[field.oneof_index].name} {{"
            for one in message.field:
                if one.HasField("oneof_index") and one.oneof_index == field.oneof_index:
                    yield f"{inner}  {_type(one, entries)} {one.name} = {one.number}{_options(one)};"
            yield f"{inner}}}"
    for enum in message.enum_type:
        yield from _enum(enum, inner)
    for nested in message.nested_type:
        if nested.name not in entries:
            yield from _message(nested, inner, syntax)
    for span in message.extension_range:
        yield f"{inner}extensions {span.start} to {span.end - 1};"
    yield from _extensions(message.extension, inner, syntax)
    yield f"{indent}}}"


def _extensions(fields: Any, indent: str, syntax: str) -> Iterator[str]:
    """Fields of others' messages, such as options that a file of its own declares."""
    for extended in dict.fromkeys(one.extendee for one in fields):
        yield f"{indent}extend {extended} {{"
        for field in fields:
            if field.extendee == extended:
                yield f"{indent}  {_field(field, {}, syntax)}"
        yield f"{indent}}}"


def _service(service: ServiceDescriptorProto) -> Iterator[str]:
    yield f"service {service.name} {{"
    for one in service.method:
        asked = f"{'stream ' if one.client_streaming else ''}{one.input_type}"
        told = f"{'stream ' if one.server_streaming else ''}{one.output_type}"
        yield f"  rpc {one.name} ({asked}) returns ({told});"
    yield "}"


def _field(field: Any, entries: dict[str, DescriptorProto], syntax: str) -> str:
    entry = _entry(field, entries)
    if entry is not None:
        key, value = entry.field
        kind = f"map<{SCALARS[key.type]}, {_type(value, {})}>"
        return f"{kind} {field.name} = {field.number};"
    label = ""
    if field.label == FIELD.LABEL_REPEATED:
        label = "repeated "
    elif field.label == FIELD.LABEL_REQUIRED:
        label = "required "
    elif field.proto3_optional or syntax == "proto2":
        label = "optional "
    return f"{label}{_type(field, entries)} {field.name} = {field.number}{_options(field)};"


def _entry(field: Any, entries: dict[str, DescriptorProto]) -> DescriptorProto | None:
    return entries.get(field.type_name.rpartition(".")[2]) if field.type == FIELD.TYPE_MESSAGE else None


def _type(field: Any, entries: dict[str, DescriptorProto]) -> str:
    return SCALARS.get(field.type) or field.type_name


def _options(field: Any) -> str:
    found = []
    if field.HasField("default_value"):
        value = json.dumps(field.default_value) if field.type in QUOTED else field.default_value
        found.append(f"default = {value}")
    if field.options.HasField("packed"):
        found.append(f"packed = {json.dumps(field.options.packed)}")
    if field.options.deprecated:
        found.append("deprecated = true")
    if field.HasField("json_name") and field.json_name != _camel(field.name):
        found.append(f"json_name = {json.dumps(field.json_name)}")
    return f" [{', '.join(found)}]" if found else ""


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _enum(enum: EnumDescriptorProto, indent: str) -> Iterator[str]:
    yield f"{indent}enum {enum.name} {{"
    if enum.options.allow_alias:
        yield f"{indent}  option allow_alias = true;"
    for value in enum.value:
        yield f"{indent}  {value.name} = {value.number};"
    yield f"{indent}}}"


def _reserved(ranges: Any, names: Any, indent: str) -> Iterator[str]:
    for span in ranges:
        last = span.end - 1
        yield f"{indent}reserved {span.start};" if span.start == last else f"{indent}reserved {span.start} to {last};"
    if names:
        yield f"{indent}reserved {', '.join(json.dumps(one) for one in names)};"

"""Protobuf: compiled by protoc (of grpcio-tools), compared by the rules of Confluent's registry over descriptors.

A schema is the text of a .proto file, or its FileDescriptorProto in base 64, which is what Python's serialiser registers.
Imports are the references of the schema and the files that come with protoc (google/protobuf/*); nothing else of the disk.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from mainstem.broker.schemas.formats import SchemaError, Source
from mainstem.broker.schemas.formats.protobuf_text import options_of, text_of

MAIN = "schema.proto"
ERROR_BYTES_MAX = 4_000
FIELD = FieldDescriptorProto
# Types within a group read each other's bytes.
GROUPS = (
    {FIELD.TYPE_INT32, FIELD.TYPE_UINT32, FIELD.TYPE_INT64, FIELD.TYPE_UINT64, FIELD.TYPE_BOOL, FIELD.TYPE_ENUM},
    {FIELD.TYPE_SINT32, FIELD.TYPE_SINT64},
    {FIELD.TYPE_FIXED32, FIELD.TYPE_SFIXED32},
    {FIELD.TYPE_FIXED64, FIELD.TYPE_SFIXED64},
    {FIELD.TYPE_STRING, FIELD.TYPE_BYTES},
)
LENGTHY = {FIELD.TYPE_STRING, FIELD.TYPE_BYTES, FIELD.TYPE_MESSAGE}
NAMED = {FIELD.TYPE_MESSAGE, FIELD.TYPE_ENUM, FIELD.TYPE_GROUP}


def parse(text: str, sources: Sequence[Source]) -> FileDescriptorProto:
    files = compiled(text, sources).file
    return next(one for one in files if one.name == MAIN)


def compiled(text: str, sources: Sequence[Source]) -> FileDescriptorSet:
    """The schema (as MAIN) with everything it imports."""
    with tempfile.TemporaryDirectory(prefix="mainstem-proto-") as folder:
        written = [_write(folder, one.name, one.text) for one in sources]
        _write(folder, MAIN, text)
        out = Path(folder, "out.bin")
        arguments = ["protoc", f"-I{folder}", f"-I{_bundled()}", f"--descriptor_set_out={out}", "--include_imports"]
        failed, said = _protoc([*arguments, f"{folder}/{MAIN}"])
        if failed:
            raise SchemaError(said.replace(f"{folder}/", "").strip() or "protoc refuses it")
        assert len(written) == len(sources)
        return FileDescriptorSet.FromString(out.read_bytes())


def _write(folder: str, name: str, text: str) -> Path:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or not place.parts or len(name) > 512 or "\0" in name:
        raise SchemaError(f"a reference cannot be called {name!r}: it is the path of an import, below the schema")
    path = Path(folder, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    found = descriptor_of(text)
    path.write_text(text if found is None else text_of(found))
    return path


def descriptor_of(text: str) -> FileDescriptorProto | None:
    """Of a schema that was registered as base 64; None: it is text."""
    if any(mark in text for mark in "{};\n "):
        return None
    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    # A file that only hands on others (`import public`) is one, too; what is empty is not a file at all.
    return found if found.message_type or found.enum_type or found.dependency or found.extension else None


def _bundled() -> str:
    from importlib.resources import files

    return str(files("grpc_tools") / "_proto")


def _protoc(arguments: list[str]) -> tuple[int, str]:
    """What it says goes to file descriptor 2, from C++: it is caught there."""
    from grpc_tools import protoc

    with tempfile.TemporaryFile() as said:
        kept = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            failed = protoc.main(arguments)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        said.seek(0)
        return failed, said.read(ERROR_BYTES_MAX).decode(errors="replace")


def canonical(text: str, sources: Sequence[Source]) -> tuple[str, str]:
    """Schemas that differ in an option only are two, so what the text cannot show counts as well."""
    found = parse(text, sources)
    normal, unshown = text_of(found), list(options_of(descriptor_of(text) or found))
    return ("\n".join([normal, *unshown]), text) if unshown else (normal, normal)


def as_format(text: str, sources: Sequence[Source], wanted: str) -> str:
    """`serialized`: base 64 of the descriptor; anything else: text."""
    known = descriptor_of(text)
    if wanted != "serialized":
        return text if known is None else text_of(known)
    if known is not None:
        return text
    found = parse(text, sources)
    found.name = "default"
    return base64.b64encode(found.SerializeToString(deterministic=True)).decode()


# -- compatibility -----------------------------------------------------------------------------------------------------


def differences(reader: FileDescriptorProto, writer: FileDescriptorProto) -> list[str]:
    """Why messages of the writer cannot be read by the reader."""
    if reader.package != writer.package:
        return [_told("PACKAGE_CHANGED", "/", f"package {writer.package!r} became {reader.package!r}")]
    return list(_messages("", reader.message_type, writer.message_type, set()))


def _messages(place: str, new: Any, old: Any, seen: set[str]) -> Iterator[str]:
    by_name = {one.name: one for one in new}
    for message in old:
        path = f"{place}/{message.name}"
        if message.options.map_entry:
            continue
        found = by_name.get(message.name)
        if found is None:
            yield _told("MESSAGE_REMOVED", path, "the message is gone")
            continue
        if path not in seen:
            seen.add(path)
            yield from _fields(path, found, message)
            yield from _messages(path, found.nested_type, message.nested_type, seen)


def _fields(place: str, new: DescriptorProto, old: DescriptorProto) -> Iterator[str]:
    now, before = {one.number: one for one in new.field}, {one.number: one for one in old.field}
    for number, field in before.items():
        path = f"{place}/{number}"
        found = now.get(number)
        if found is None:
            if field.label == FIELD.LABEL_REQUIRED:
                yield _told("REQUIRED_FIELD_REMOVED", path, f"required field {field.name} is gone")
            elif _oneof(old, field) is not None and not field.proto3_optional:
                yield _told("ONEOF_FIELD_REMOVED", path, f"field {field.name} of a oneof is gone")
            continue
        yield from _field(path, found, field, new, old)
    for number, field in now.items():
        if number not in before and field.label == FIELD.LABEL_REQUIRED:
            yield _told("REQUIRED_FIELD_ADDED", f"{place}/{number}", f"required field {field.name} is new")
    yield from _oneofs(place, new, old, before)


def _field(path: str, new: Any, old: Any, new_in: DescriptorProto, old_in: DescriptorProto) -> Iterator[str]:
    entry, former = _map_entry(new_in, new), _map_entry(old_in, old)
    if entry is not None and former is not None:
        yield from _fields(path, entry, former)
        return
    if new.type != old.type and not any(new.type in group and old.type in group for group in GROUPS):
        code = "FIELD_KIND_CHANGED" if (new.type in NAMED) != (old.type in NAMED) else "FIELD_SCALAR_KIND_CHANGED"
        yield _told(code, path, f"the type of field {new.name} changed")
    elif new.type == FIELD.TYPE_MESSAGE and new.type_name != old.type_name:
        yield _told("FIELD_NAMED_TYPE_CHANGED", path, f"field {new.name} was {old.type_name}, now {new.type_name}")
    if (new.label == FIELD.LABEL_REPEATED) != (old.label == FIELD.LABEL_REPEATED) and new.type not in LENGTHY:
        yield _told("FIELD_NUMERIC_LABEL_CHANGED", path, f"field {new.name} changed between one and many")
    if (new.label == FIELD.LABEL_REQUIRED) and old.label != FIELD.LABEL_REQUIRED:
        yield _told("REQUIRED_FIELD_ADDED", path, f"field {new.name} became required")


def _oneofs(place: str, new: DescriptorProto, old: DescriptorProto, before: dict[int, Any]) -> Iterator[str]:
    """Fields that were apart exclude each other once they are in one oneof."""
    for index, oneof in enumerate(new.oneof_decl):
        members = [one for one in new.field if one.HasField("oneof_index") and one.oneof_index == index]
        moved = [one for one in members if one.number in before and _oneof(old, before[one.number]) != oneof.name]
        existed = any(_oneof(old, one) == oneof.name for one in before.values())
        if len(moved) > 1:
            names = ", ".join(one.name for one in moved)
            yield _told("MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"{place}/{oneof.name}", f"fields {names} moved into a oneof")
        elif moved and existed:
            yield _told(
                "FIELD_MOVED_TO_EXISTING_ONEOF", f"{place}/{oneof.name}", f"field {moved[0].name} moved into it"
            )


def _oneof(message: DescriptorProto, field: Any) -> str | None:
    return message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None


def _map_entry(message: DescriptorProto, field: Any) -> DescriptorProto | None:
    if field.type != FIELD.TYPE_MESSAGE or field.label != FIELD.LABEL_REPEATED:
        return None
    with contextlib.suppress(StopIteration):
        last = field.type_name.rpartition(".")[2]
        return next(one for one in message.nested_type if one.name == last and one.options.map_entry)
    return None


def _told(code: str, path: str, why: str) -> str:
    return f"{{errorType:'{code}', description:'{why} at path #{path}'}}"

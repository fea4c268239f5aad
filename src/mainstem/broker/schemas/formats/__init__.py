"""Avro, JSON Schema and Protobuf. Each module has the same three functions; their libraries are imported on first use.

parse(text, sources)             → the schema as its library has it; SchemaError says what is wrong with it
canonical(text, sources, ...)    → the form in which equal schemas are equal, and the normalised text
differences(reader, writer)      → why data of the writer cannot be read by the reader; none: it can
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

MODULES = {"AVRO": "avro", "JSON": "json_schema", "PROTOBUF": "protobuf"}


class SchemaError(Exception):
    """What is wrong with a schema, in words for whoever wrote it."""


class MissingLibrary(Exception):
    """The extra that holds the libraries is not installed."""


class Source(NamedTuple):
    """A schema that another refers to, by the name it uses."""

    name: str
    text: str


def format_of(kind: str) -> Any:
    try:
        return importlib.import_module(f"mainstem.broker.schemas.formats.{MODULES[kind]}")
    except ImportError as error:
        raise MissingLibrary(f"{kind} schemas need a library that is not installed: {error.name}") from None

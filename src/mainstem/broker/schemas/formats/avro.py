"""Avro: parsed and compared by Apache's own library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.errors import AvroException
from avro.name import Names
from avro.schema import Schema as AvroSchema
from avro.schema import make_avsc_object

from mainstem.broker.schemas.formats import SchemaError, Source

ORDER = (
    "type",
    "name",
    "namespace",
    "doc",
    "aliases",
    "fields",
    "symbols",
    "items",
    "values",
    "size",
    "default",
    "order",
)
PLACES = {name: place for place, name in enumerate(ORDER)}


def parse(text: str, sources: Sequence[Source]) -> AvroSchema:
    names = Names(validate_names=True)
    try:
        for one in sources:
            make_avsc_object(_loaded(one.text), names)
        return make_avsc_object(_loaded(text), names)
    except (AvroException, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SchemaError(str(error) or type(error).__name__) from None


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        if text.isidentifier():  # the bare name of a primitive type
            return text
        raise


def canonical(text: str, sources: Sequence[Source]) -> tuple[str, str]:
    parse(text, sources)
    normal = json.dumps(_ordered(_loaded(text)), separators=(",", ":"), ensure_ascii=False)
    return normal, normal


def _ordered(value: Any) -> Any:
    """Attributes in the order of the specification, the rest by name."""
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: (PLACES.get(name, len(ORDER)), name))
        return {name: value[name] if name == "default" else _ordered(value[name]) for name in names}
    return [_ordered(one) for one in value] if isinstance(value, list) else value


def differences(reader: AvroSchema, writer: AvroSchema) -> list[str]:
    make: Any = ReaderWriterCompatibilityChecker  # its constructor has no types
    found = make().get_compatibility(reader, writer)
    if found.compatibility is SchemaCompatibilityType.compatible:
        return []
    kinds = [getattr(one, "name", str(one)).upper() for one in found.incompatibilities]
    places, why = sorted(found.locations), sorted(found.messages)
    return [
        f"{{errorType:'{kind}', description:'{'; '.join(why)} at path {', '.join(places)}'}}"
        for kind in sorted(set(kinds))
    ]

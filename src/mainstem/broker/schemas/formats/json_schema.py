"""JSON Schema (drafts 4 to 2020-12): read by jsonschema-rs. A `$ref` to another document is a reference by that name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from mainstem.broker.schemas.formats import SchemaError, Source
from mainstem.broker.schemas.formats.json_compatibility import Comparing, Resolver

NESTING_MAX = 200
BASE = "json-schema:///"
BACKTRACK_MAX = 10_000  # of a pattern that only a backtracking matcher understands


@dataclass(frozen=True, slots=True)
class Parsed:
    document: Any
    sources: dict[str, Any]

    @property
    def resolver(self) -> Resolver:
        return Resolver(self.document, self.sources)


def parse(text: str, sources: Sequence[Source]) -> Parsed:
    parsed = load(text, sources)
    compile_schema(parsed)
    return parsed


def load(text: str, sources: Sequence[Source]) -> Parsed:
    """Read, and not yet compiled."""
    return Parsed(_loaded(text), {one.name: _loaded(one.text) for one in sources})


def _loaded(text: str) -> Any:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict | bool):
        raise SchemaError("a JSON Schema is an object, true or false")
    if _nesting(document) > NESTING_MAX:
        raise SchemaError(f"it is nested more than {NESTING_MAX} deep")
    return document


def _nesting(document: Any) -> int:
    depth, level = 0, [document]
    while level:
        depth += 1
        inside = [one for one in level if isinstance(one, dict | list)]
        level = [part for one in inside for part in (one.values() if isinstance(one, dict) else one)]
    return depth


def compile_schema(parsed: Parsed) -> Any:
    """A validator. Patterns are matched in linear time where they can be, else with bounded backtracking."""
    options: Any = jsonschema_rs.RegexOptions()
    try:
        return _compiled(parsed, options)
    except (jsonschema_rs.ValidationError, ValueError) as error:
        if "regex" not in str(error) and "pattern" not in str(error):
            raise _refused(error) from None
    try:
        return _compiled(parsed, jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_MAX))
    except (jsonschema_rs.ValidationError, ValueError) as error:
        raise _refused(error) from None


def _compiled(parsed: Parsed, patterns: Any) -> Any:
    try:
        return jsonschema_rs.validator_for(
            parsed.document, retriever=_retriever(parsed.sources), base_uri=BASE, pattern_options=patterns
        )
    except jsonschema_rs.ReferencingError as error:
        raise SchemaError(f"a $ref cannot be followed: {error}") from None


def _refused(error: Exception) -> SchemaError:
    return SchemaError(str(error).partition("\n")[0])


def _retriever(sources: dict[str, Any]) -> Callable[[str], Any]:
    """Nothing is ever fetched: what is not a reference does not exist."""

    def retrieve(uri: str) -> Any:
        for name in (uri, uri.removeprefix(BASE), uri.rpartition("/")[2]):
            if name in sources:
                return sources[name]
        raise LookupError(f"{uri} is not among the references of the schema")

    return retrieve


def canonical(text: str, sources: Sequence[Source]) -> tuple[str, str]:
    document = parse(text, sources).document
    normal = json.dumps(document, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False), normal


def differences(reader: Parsed, writer: Parsed) -> list[str]:
    comparing = Comparing(reader.resolver, writer.resolver)
    comparing.compare("#", reader.document, writer.document)
    return comparing.found

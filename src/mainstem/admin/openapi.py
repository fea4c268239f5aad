"""The OpenAPI document, made from the table of operations and from the types that their handlers return."""

from __future__ import annotations

import re
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from mainstem import __version__
from mainstem.admin.answers import Events, Lines, Problem
from mainstem.admin.api import OPERATIONS
from mainstem.admin.calls import Field, Operation
from mainstem.admin.problems import statuses_of
from mainstem.broker.rights.operations import Scope

REFERENCE = "#/components/schemas/{name}"
PROBLEM_KIND = "application/problem+json"
STREAMS = (Events, Lines)
PAGE_NAME = re.compile(rb'\b(?:Counted)?Page_(\w+)_(?=")')  # as the library calls Page[TopicRow]: TopicRowPage


@cache
def openapi_document() -> dict[str, Any]:
    """The same for as long as the process lives: nobody changes it."""
    answers = [_answers_of(one) for one in OPERATIONS]
    types = [Problem, *(one for each in answers for one in each)]
    made = msgspec.json.encode(msgspec.json.schema_components(types, ref_template=REFERENCE))
    found, schemas = msgspec.json.decode(PAGE_NAME.sub(rb"\1Page", made))
    described = iter(found)
    problem = next(described)
    paths: dict[str, dict[str, Any]] = {}
    for operation, each in zip(OPERATIONS, answers, strict=True):
        path = re.sub(r"\{(\w+):path\}", r"{\1}", operation.path)
        shapes = [next(described) for _ in each]
        answer = shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, answer, problem)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mainstem", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"login": {"type": "http", "scheme": "basic"}},
        },
        "security": [{"login": []}, {}],
    }


def _answers_of(operation: Operation) -> tuple[Any, ...]:
    """What may be answered; of a stream, each piece of it."""
    answer = operation.answer
    if get_origin(answer) in STREAMS:
        return get_args(answer)
    return get_args(answer) if get_origin(answer) in (Union, UnionType) else (answer,)


def _operation(operation: Operation, answer: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)", operation.path)
    ]
    parameters += [
        {
            "name": one.name,
            "in": "query",
            "required": one.required,
            "description": one.doc,
            "schema": _schema(one),
        }
        for one in operation.query
    ]
    refused = {"content": {PROBLEM_KIND: {"schema": problem}}}
    described: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "summary": operation.summary,
        "tags": [operation.group],
        "x-needs": str(operation.need),
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done.", "content": _content(operation, answer)},
            **{str(status): {"description": why, **refused} for status, why in _problems(operation).items()},
            "default": {"description": "Another problem.", **refused},
        },
    }
    if operation.body or operation.method in ("POST", "PUT", "PATCH"):
        described["requestBody"] = {"content": {"application/json": {"schema": _object(operation.body)}}}
    return described


def _content(operation: Operation, answer: dict[str, Any]) -> dict[str, Any]:
    stream = get_origin(operation.answer)
    if stream not in STREAMS:
        return {"application/json": {"schema": answer}}
    words = "Server-sent events; the data of each" if stream is Events else "JSON lines; each"
    schema = {"type": "string", "description": f"{words} is described by `x-itemSchema`."}
    return {stream.media_type: {"schema": schema, "x-itemSchema": answer}}


def _problems(operation: Operation) -> dict[int, str]:
    """Those that any call of it may meet; the others depend on what is asked for."""
    known = {400: "The request is not understood: an unknown parameter or field, a value out of range."}
    if operation.need.scope is not Scope.PUBLIC:
        known[401] = "A login is needed, or it is wrong."
    if operation.need.scope not in (Scope.PUBLIC, Scope.EACH):
        known[403] = f"The caller may not: it needs {operation.need}."
    if "{" in operation.path and operation.method != "PUT":
        known[404] = "There is none of this name."
    assert known.keys() <= {401, *statuses_of()}
    return known


def type_text(schema: dict[str, Any]) -> str:
    """A schema in a few words, for people; a type is called by its name."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(type_text(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        pair = schema.get("prefixItems")
        return f"[{', '.join(map(type_text, pair))}]" if pair else f"list of {type_text(schema.get('items') or {})}"
    if schema.get("additionalProperties"):
        return f"object of {type_text(schema['additionalProperties'])}"
    return str(schema.get("type", "any"))


def _object(fields: tuple[Field, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [one.name for one in fields if one.required],
        "properties": {one.name: {"description": one.doc, **_schema(one)} for one in fields},
    }


def _schema(one: Field) -> dict[str, Any]:
    return {} if one.kind == "any" else {"type": one.kind}

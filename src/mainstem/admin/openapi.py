"""The OpenAPI document, made from the table of operations; so it cannot forget one."""

from __future__ import annotations

import re
from typing import Any

from mainstem import __version__
from mainstem.admin.answers import ROWS
from mainstem.admin.api import OPERATIONS
from mainstem.admin.calls import Field, Operation

PROBLEM = {
    "type": "object",
    "required": ["status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "Stable; `mainstem explain CODE` says more."},
        "detail": {"type": "string"},
        "fix": {"type": "string", "description": "The command that mends it, where there is one."},
    },
}


PAGE = {
    "type": "object",
    "required": ["items", "next"],
    "properties": {
        "items": {"type": "array", "items": {"type": "object"}},
        "next": {"type": ["string", "integer", "null"], "description": "Ask again with `after` (or `from`) to go on."},
    },
}


def openapi_document() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        path = re.sub(r"\{(\w+):path\}", r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mainstem", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": {"Problem": PROBLEM, "Page": PAGE, **_row_schemas()},
            "securitySchemes": {"login": {"type": "http", "scheme": "basic"}},
        },
        "security": [{"login": []}, {}],
    }


def _operation(operation: Operation) -> dict[str, Any]:
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
    media = "text/event-stream" if operation.streams else "application/json"
    described: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "summary": operation.summary,
        "tags": [operation.group],
        "x-needs": str(operation.need),
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done.", "content": {media: _answer(operation)}},
            "default": {
                "description": "A problem.",
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if operation.body or operation.method in ("POST", "PUT", "PATCH"):
        described["requestBody"] = {"content": {"application/json": {"schema": _object(operation.body)}}}
    return described


def _answer(operation: Operation) -> dict[str, Any]:
    """A list is a page of rows with where to go on; everything else is an object, or a stream of them."""
    if operation.streams:
        return {"schema": {"type": "string", "description": "Server-sent events; the data of each is a JSON object."}}
    listed = operation.method == "GET" and any(one.name == "limit" for one in operation.query)
    page: dict[str, Any] = {"$ref": "#/components/schemas/Page"}
    row = ROWS.get(operation.group)
    if row is None or operation.method != "GET" or operation.path.count("/") > 3:  # of something that it has
        return {"schema": page if listed else {"type": "object"}}
    one = {"$ref": f"#/components/schemas/{row[0]}"}
    return {"schema": {"allOf": [page, {"properties": {"items": {"items": one}}}]} if listed else one}


def _row_schemas() -> dict[str, Any]:
    """One thing in full has more than its row."""
    return {name: {**_object(fields), "additionalProperties": True} for name, fields in ROWS.values()}


def _object(fields: tuple[Field, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [one.name for one in fields if one.required],
        "properties": {one.name: {"description": one.doc, **_schema(one)} for one in fields},
    }


def _schema(one: Field) -> dict[str, Any]:
    return {} if one.kind == "any" else {"type": one.kind}

"""docs/http-api.md, made from the table of operations; a test holds both equal."""

from __future__ import annotations

import re
from typing import Any

from mainstem.admin.api import OPERATIONS
from mainstem.admin.calls import Operation
from mainstem.admin.openapi import openapi_document, type_text

STREAMED = {"text/event-stream": "server-sent events, each a ", "application/x-ndjson": "lines of JSON, each a "}

_HEAD = """\
# The HTTP API

<!-- made by `python -m mainstem.admin.api_reference`; a test compares -->

On `listeners.http_port` (7070), JSON in and out, described by `/v1/openapi.json`. What changes something must be sent as
`application/json`. Lists answer `{"items": [...], "next": ...}`; ask again with `after=<next>`. Problems are
`application/problem+json` with a stable `code` (`mainstem explain CODE`), the reason in `detail` and often a `fix`. Any
topic name may stand in a path, percent-encoded or not. What each call answers is one of the types [at the end](#answers);
an answer may get more fields with a later version, and loses none.

Once users exist, programs log in by HTTP Basic, a Bearer token or a client certificate. Without a login they are
answered 401. A browser that opens a page without one is led to the console's login page: `POST /login` with
`{"user", "password"}` answers with the cookie of a session, `POST /logout` ends it ([security](security.md#the-console)).

```
curl localhost:7070/v1/messages -H 'content-type: application/json' -d '{"topic": "a/b", "value": "hello"}'
curl 'localhost:7070/v1/messages?topic=a/b&from=-10'
curl -N 'localhost:7070/v1/tail?filter=a/%23'
```

Besides: `/livez`, `/readyz`, [metrics](metrics.md) at `/metrics`; RabbitMQ's management API below `/api`; the routes below
`/v1/scan` and `/v1/stage` are the Spark connector's.
"""


def reference_page() -> str:
    parts = [_HEAD]
    group = ""
    for operation in OPERATIONS:
        name = operation.group
        if name != group:
            group = name
            parts.append(f"## {name}\n")
        parts.append(_section(operation))
    parts.append("## Answers\n")
    parts += [_answer(name, schema) for name, schema in sorted(openapi_document()["components"]["schemas"].items())]
    return "\n".join(parts)


def _answer(name: str, schema: dict[str, Any]) -> str:
    lines = [f"**`{name}`**{': ' + schema['description'] if 'description' in schema else ''}", ""]
    for field, one in schema["properties"].items():
        left_out = "" if field in schema["required"] else ", may be left out"
        doc = f": {one['description']}" if "description" in one else ""
        lines.append(f"- `{field}` ({type_text(one)}{left_out}){doc}")
    return "\n".join(lines) + "\n"


def _section(operation: Operation) -> str:
    path = operation.path.replace(":path", "")
    lines = [f"**`{operation.method} {path}`**: {operation.summary} Needs {operation.need}.", ""]
    for place, fields in (("query", operation.query), ("body", operation.body)):
        for one in fields:
            needed = ", required" if one.required else ""
            lines.append(f"- `{one.name}` ({place}, {one.kind}{needed}): {one.doc}")
    path = re.sub(r"\{(\w+):path\}", r"{\1}", operation.path)
    [(kind, content)] = openapi_document()["paths"][path][operation.method.lower()]["responses"]["200"][
        "content"
    ].items()
    answered = type_text(content.get("x-itemSchema", content["schema"]))
    lines += [*([""] if lines[-1] else []), f"Answers {STREAMED.get(kind, '')}`{answered}`."]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(reference_page(), end="")  # noqa: T201

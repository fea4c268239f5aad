"""The process that parses and compares schemas: a question a line, an answer a line, as JSON. Started by `checker.py`.

It has bounded memory and no way to the broker's data; a question that takes too long ends it. What it is asked:

    {"do": "parse", "kind", "text", "sources": [[name, text], ...], "normalize"}    → {"canonical", "text", "descriptors"?}
    {"do": "compare", "kind", "text", "sources", "level",
     "old": [{"version", "kind", "text", "sources"}, ...]}                          → {"messages": [...]}
    {"do": "format", "kind", "text", "sources", "format"}                           → {"text"}

An answer may be {"invalid": why} (the schema's fault) or {"missing": why} (a library is not installed).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import resource
import sys
from typing import Any

from mainstem.broker.schemas.formats import MissingLibrary, SchemaError, Source, format_of

MEMORY_BYTES_MAX = 2 << 30
MESSAGES_MAX = 50


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"parse": _parse, "compare": _compare, "format": _format}[asked["do"]](asked)
    except SchemaError as error:
        return {"invalid": str(error)[:2_000]}
    except MissingLibrary as error:
        return {"missing": str(error)}
    except RecursionError:
        return {"invalid": "it is nested too deeply"}
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, MemoryError) as error:
        return {"invalid": f"{type(error).__name__}: {error}"[:2_000]}


def _parse(asked: dict[str, Any]) -> dict[str, Any]:
    canonical, normal = format_of(asked["kind"]).canonical(asked["text"], _sources(asked))
    if asked.get("normalize"):
        canonical = normal
    extra = {"descriptors": descriptors_of(asked)} if asked["kind"] == "PROTOBUF" else {}
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return {"canonical": digest, "text": normal if asked.get("normalize") else asked["text"], **extra}


def descriptors_of(asked: dict[str, Any]) -> str:
    data: bytes = format_of("PROTOBUF").compiled(asked["text"], _sources(asked)).SerializeToString(deterministic=True)
    return base64.b64encode(data).decode()


def _compare(asked: dict[str, Any]) -> dict[str, Any]:
    kind, level = asked["kind"], asked["level"].removesuffix("_TRANSITIVE")
    tool = format_of(kind)
    new, messages = tool.parse(asked["text"], _sources(asked)), list[str]()
    for one in asked["old"]:
        if one["kind"] != kind:
            found = [f"{{errorType:'TYPE_CHANGED', description:'the schema type was {one['kind']}, now {kind}'}}"]
        else:
            old = tool.parse(one["text"], _sources(one))
            found = list(tool.differences(new, old)) if level in ("BACKWARD", "FULL") else []
            found += tool.differences(old, new) if level in ("FORWARD", "FULL") else []
        if found:
            messages += [
                *found[:MESSAGES_MAX],
                f"{{oldSchemaVersion: {one['version']}}}",
                f"{{compatibility: '{asked['level']}'}}",
            ]
    return {"messages": messages[: 4 * MESSAGES_MAX]}


def _format(asked: dict[str, Any]) -> dict[str, Any]:
    text = format_of(asked["kind"]).as_format(asked["text"], _sources(asked), asked["format"])
    return {"text": text}


def _sources(asked: dict[str, Any]) -> list[Source]:
    return [Source(name, text) for name, text in asked["sources"]]


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    for line in sys.stdin:
        replies.write(json.dumps(answer(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main()

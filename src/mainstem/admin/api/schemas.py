"""/v1/decode and /v1/schemas: what the registry's own API (schema_api.py) does not tell."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from mainstem.admin.answers import Page
from mainstem.admin.answers.topics import DecodedValues, Differences, SubjectRow
from mainstem.admin.calls import Call, Field, Operation, page
from mainstem.admin.schema_rights import sees
from mainstem.broker.schemas.differences import differences
from mainstem.broker.schemas.subjects import topic_of_subject
from mainstem.model.errors import InvalidArgument

VALUES_MAX = 1_000


async def decode_values(call: Call) -> DecodedValues:
    """Each as its schema reads it, or null. What the caller may not see of schemas stays unread."""
    values = call.body.get("values") or []
    if len(values) > VALUES_MAX:
        raise InvalidArgument(f"{len(values)} values at once; at most {VALUES_MAX}")
    enforcement = call.running.broker.schemas.of(call.namespace).enforcement
    rows: list[Any] = []
    for place, text in enumerate(values):
        if place % 20 == 19:
            await call.running.broker.turns.turn(call.namespace.name)
        try:
            found = enforcement.shown(base64.b64decode(text, validate=True))
        except (binascii.Error, TypeError, ValueError):
            raise InvalidArgument(f"value {place} is not base 64") from None
        seen = found is not None and any(
            sees(call.running, call.principal, call.namespace, subject) for subject, _ in found.versions
        )
        rows.append({**found.facts(), "json": found.json} if found is not None and seen else None)
    return page(rows)


async def list_subjects(call: Call) -> Page[SubjectRow]:
    """Subjects with their latest version, level and the topics whose policy names them."""
    state = call.running.broker.schemas.of(call.namespace).state
    used: dict[str, list[str]] = {}
    for topic in call.namespace.topics.values():
        if topic.policy.schema:
            used.setdefault(topic.policy.schema, []).append(topic.name.decode(errors="replace"))
    for topic_filter, changes in call.namespace.rules.items():
        if changes.get("schema"):
            used.setdefault(changes["schema"], []).append(topic_filter.decode())
    rows = list[SubjectRow]()
    for name in state.names():
        if sees(call.running, call.principal, call.namespace, name):
            latest = state.versions(name)[-1]
            rows.append(
                {
                    "name": name,
                    "type": latest.schema.kind,
                    "version": latest.version,
                    "id": latest.id,
                    "level": state.level(name),
                    "topics": sorted(used.get(name, [])),
                }
            )
    return page(rows)


async def compare_versions(call: Call) -> Differences:
    """Two versions of a subject, line by line."""
    state = call.running.broker.schemas.of(call.namespace).state
    subject = call.path["name"]
    call.require_object(topic_of_subject(subject))
    versions = state.require(subject, deleted=True)
    new = call.number("new", versions[-1].version)
    old = call.number("old", max((one.version for one in versions if one.version < new), default=new))
    texts = [state.version(subject, number, deleted=True).schema.text for number in (old, new)]
    return {
        "name": subject,
        "old": old,
        "new": new,
        "lines": [{"mark": one["mark"], "text": one["text"]} for one in differences(*texts)],
    }


OPERATIONS = (
    Operation(
        "POST",
        "/v1/decode",
        decode_values,
        "Values in the wire format of the schema registry, as JSON.",
        "schema.list",
        body=(Field("values", "array", "Values in base 64, at most 1,000."),),
    ),
    Operation(
        "GET",
        "/v1/schemas",
        list_subjects,
        "Subjects of the schema registry: their latest version, level, and the topics that use them.",
        "schema.list",
    ),
    Operation(
        "GET",
        "/v1/schemas/{name:path}/differences",
        compare_versions,
        "What changed between two versions of a subject.",
        "schema.describe",
        query=(
            Field("old", "integer", "A version; the one before `new` if none is said."),
            Field("new", "integer", "A version; the latest if none is said."),
        ),
    ),
)

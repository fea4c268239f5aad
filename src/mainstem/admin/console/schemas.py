"""The pages of the schema registry: all subjects, and one with its versions and what each changed."""

from __future__ import annotations

from typing import Any

from mainstem.admin.api.schemas import list_subjects
from mainstem.admin.calls import Call
from mainstem.admin.schema_rights import sees
from mainstem.broker.schemas.differences import differences, shown
from mainstem.broker.schemas.subjects import topic_of_subject


async def schemas_page(call: Call) -> dict[str, Any]:
    return dict(await list_subjects(call))


async def schema_page(call: Call) -> dict[str, Any]:
    subject = call.query.get("name", "")
    if not sees(call.running, call.principal, call.namespace, subject):
        call.require_object(topic_of_subject(subject))
    state = call.running.broker.schemas.of(call.namespace).state
    versions = state.require(subject, deleted=True)
    number = call.number("version", versions[-1].version)
    chosen = state.version(subject, number, deleted=True)
    before = [one for one in versions if one.version < chosen.version]
    if before:
        lines = differences(before[-1].schema.text, chosen.schema.text)
    else:
        lines = [{"mark": " ", "text": line} for line in shown(chosen.schema.text)]
    return {
        "name": subject,
        "type": chosen.schema.kind,
        "level": state.level(subject),
        "topic": topic_of_subject(subject),
        "versions": [{"version": one.version, "id": one.id, "deleted": one.deleted} for one in versions],
        "chosen": chosen.version,
        "before": before[-1].version if before else None,
        "lines": lines,
        "references": [f"{one.name}: {one.subject} {one.version}" for one in chosen.schema.references],
    }

"""A JSON Schema proposed from values: which fields there are, of which types, in what share of records, and the odd ones.

And what would break: of the same records those that a schema, this or a registered one, would refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mainstem.broker.schemas.records import Schema
from mainstem.broker.schemas.values import Misfit, Unchecked, compiled

FIELDS_MAX = 500
DEPTH_MAX = 8
ODD_SHARE = 0.01  # what is rarer than this is told as odd and not proposed
REASONS_MAX = 20


@dataclass(slots=True)
class Seen:
    """What was seen at one place."""

    count: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    members: dict[str, Seen] = field(default_factory=dict)
    items: Seen | None = None

    def add(self, value: Any, depth: int = 0) -> None:
        self.count += 1
        kind = kind_of(value)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if depth >= DEPTH_MAX:
            return
        if isinstance(value, dict):
            for name, one in value.items():
                if name in self.members or len(self.members) < FIELDS_MAX:
                    self.members.setdefault(name, Seen()).add(one, depth + 1)
        elif isinstance(value, list):
            self.items = self.items or Seen()
            for one in value[:FIELDS_MAX]:
                self.items.add(one, depth + 1)


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "string" if isinstance(value, str) else "object" if isinstance(value, dict) else "array"


class Inferring:
    def __init__(self) -> None:
        self.seen = Seen()
        self.records = self.not_json = 0

    def add(self, value: bytes | None) -> None:
        if not value:
            return
        self.records += 1
        try:
            self.seen.add(msgspec.json.decode(value))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.not_json += 1

    def schema(self) -> dict[str, Any]:
        """What almost all of them fit; open, so that fields may be added."""
        return {"$schema": "http://json-schema.org/draft-07/schema#", **_schema(self.seen)}

    def fields(self) -> list[dict[str, Any]]:
        """Each place with its types, the share of records that have it, and whether it is odd."""
        return list(_rows(self.seen, "", max(1, self.seen.count)))


@dataclass(slots=True)
class Refused:
    """Of the records looked at, those that a schema refuses: how many for which reason, and where the first of each is."""

    records: int = 0
    reasons: dict[str, tuple[int, str]] = field(default_factory=dict)
    unchecked: str = ""  # why nothing could be checked

    def rows(self) -> list[dict[str, Any]]:
        found = sorted(self.reasons.items(), key=lambda one: -one[1][0])
        return [{"reason": why, "records": count, "first": place} for why, (count, place) in found]


def refused_by(schema: Schema, sources: Sequence[tuple[str, str]], values: Sequence[tuple[str, bytes]]) -> Refused:
    """`values`: each with the place to tell of it."""
    found = Refused()
    try:
        codec = compiled(schema, sources)
    except Unchecked as unchecked:
        return Refused(unchecked=str(unchecked))
    for place, value in values:
        try:
            codec.bare(value)
        except Misfit as misfit:
            found.records += 1
            why = str(misfit)
            count, first = found.reasons.get(why, (0, place))
            if count or len(found.reasons) < REASONS_MAX:
                found.reasons[why] = count + 1, first
    return found


def _usual(seen: Seen) -> list[str]:
    kinds = {kind for kind, count in seen.kinds.items() if count > ODD_SHARE * seen.count}
    if {"integer", "number"} <= kinds:
        kinds.discard("integer")
    return sorted(kinds)


def _schema(seen: Seen) -> dict[str, Any]:
    kinds = _usual(seen)
    found: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds} if kinds else {}
    if "object" in kinds:
        usual = {name: one for name, one in seen.members.items() if one.count > ODD_SHARE * seen.count}
        found["properties"] = {name: _schema(one) for name, one in sorted(usual.items())}
        required = sorted(name for name, one in usual.items() if one.count == seen.kinds.get("object"))
        if required:
            found["required"] = required
    if "array" in kinds and seen.items is not None and seen.items.count:
        found["items"] = _schema(seen.items)
    return found


def _rows(seen: Seen, path: str, whole: int) -> Any:
    if path:
        share = seen.count / whole
        odd = [kind for kind, count in sorted(seen.kinds.items()) if count <= ODD_SHARE * seen.count]
        yield {
            "field": path,
            "type": " or ".join(sorted(seen.kinds)),
            "share": round(100 * share, 1),
            "odd": "rare" if share <= ODD_SHARE else f"seldom {', '.join(odd)}" if odd else "",
        }
    for name, one in sorted(seen.members.items()):
        yield from _rows(one, f"{path}.{name}" if path else name, whole)
    if seen.items is not None and seen.items.members:
        yield from _rows(seen.items, f"{path}[]", max(1, seen.items.count))

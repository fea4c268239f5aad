"""Whether what a JSON Schema (the old) accepts, another (the new) accepts too: the rules of Confluent's registry.

A content model is *open* (other properties may be there), *closed* (`additionalProperties: false`) or *partially open* (they
must match a schema). A property may be added to a closed one if it is optional or has a default; to an open one only with an
empty schema, as old data may hold anything under that name. A property may be removed from an open one; from a closed one
only if it was `false`. Limits may be loosened, enumerations extended, types widened.
"""

from __future__ import annotations

import json
from typing import Any

from mainstem.model.whole_numbers import whole_number

COMPARED_MAX = 20_000  # pairs of schemas
DEPTH_MAX = 200
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
# (keyword, a larger value accepts more)
LIMITS = (
    ("maxLength", True),
    ("minLength", False),
    ("maximum", True),
    ("minimum", False),
    ("exclusiveMaximum", True),
    ("exclusiveMinimum", False),
    ("maxItems", True),
    ("minItems", False),
    ("maxProperties", True),
    ("minProperties", False),
)
COMBINED = ("allOf", "anyOf", "oneOf")


class Resolver:
    """Follows `$ref` within a document and to the documents that it names."""

    def __init__(self, document: Any, sources: dict[str, Any]) -> None:
        self._document = document
        self._sources = sources

    def resolve(self, schema: Any) -> Any:
        for _ in range(DEPTH_MAX):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return schema
            found = self._follow(schema["$ref"])
            if found is None:
                return schema
            schema = found
        return schema

    def _follow(self, ref: str) -> Any:
        name, _, pointer = ref.partition("#")
        at = self._document if not name else self._named(name)
        for part in pointer.split("/")[1:] if pointer.startswith("/") else ():
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(at, list) and (index := whole_number(part)) is not None and index < len(at):
                at = at[index]
            elif isinstance(at, dict):
                at = at.get(part)
            else:
                return None
        return at

    def _named(self, name: str) -> Any:
        if isinstance(self._document, dict) and self._document.get("$id") == name:
            return self._document
        return self._sources.get(name, self._sources.get(name.rpartition("/")[2]))


class Comparing:
    """`found` is what old data may hold that the new schema refuses."""

    def __init__(self, new: Resolver, old: Resolver) -> None:
        self._new, self._old = new, old
        self.found: list[str] = []
        self._seen: set[tuple[int, int]] = set()

    def compare(self, place: str, new: Any, old: Any) -> None:
        new, old = self._new.resolve(new), self._old.resolve(old)
        pair = (id(new), id(old))
        if pair in self._seen:
            return
        self._seen.add(pair)
        if len(self._seen) > COMPARED_MAX or place.count("/") > 2 * DEPTH_MAX:
            raise ValueError(f"more than {COMPARED_MAX} parts to compare")
        if _accepts_all(new) or old is False:
            return
        if not isinstance(new, dict) or not isinstance(old, dict):
            self._tell("TYPE_CHANGED", place, "the schema refuses what it accepted")
            return
        if self._combined(place, new, old):
            return
        self._types(place, new, old)
        self._values(place, new, old)
        self._properties(place, new, old)
        self._items(place, new, old)

    def _tell(self, code: str, place: str, why: str) -> None:
        self.found.append(f"{{errorType:'{code}', description:'{why} at path {place}'}}")

    def _fits(self, new: Any, old: Any) -> bool:
        trial = Comparing(self._new, self._old)
        trial._seen = self._seen.copy()
        trial.compare("#", new, old)
        self._seen |= {pair for pair in trial._seen if not trial.found}
        return not trial.found

    # -- combinations

    def _combined(self, place: str, new: dict[str, Any], old: dict[str, Any]) -> bool:
        """True: it is all said. Sums may be extended, products narrowed; one schema may become one of a sum."""
        kinds_new = [one for one in COMBINED if isinstance(new.get(one), list)]
        kinds_old = [one for one in COMBINED if isinstance(old.get(one), list)]
        if "not" in new or "not" in old:
            self._negated(place, new, old)
        if not kinds_new and not kinds_old:
            return False
        if kinds_new and not kinds_old:
            kind = kinds_new[0]
            if kind == "allOf":
                fits = all(self._fits(one, old) for one in new[kind])
            else:
                fits = any(self._fits(one, old) for one in new[kind])
            if not fits:
                self._tell("COMBINED_TYPE_CHANGED", f"{place}/{kind}", f"{kind} does not accept what was accepted")
            return not (set(new) & {"type", "properties"})
        if not kinds_new:
            parts = old[kinds_old[0]]
            fit = any if kinds_old[0] == "allOf" else all
            if not fit(self._fits(new, one) for one in parts):
                self._tell("COMBINED_TYPE_CHANGED", f"{place}/{kinds_old[0]}", f"{kinds_old[0]} became one schema")
            return True
        self._same_kinds(place, kinds_new[0], kinds_old[0], new, old)
        return not (set(new) & {"type", "properties"} and set(old) & {"type", "properties"})

    def _same_kinds(self, place: str, now: str, before: str, new: dict[str, Any], old: dict[str, Any]) -> None:
        if now != before and now != "anyOf" and not (len(new[now]) == 1 == len(old[before])):
            self._tell("COMBINED_TYPE_CHANGED", place, f"{before} became {now}")
            return
        parts_new, parts_old = new[now], old[before]
        if before == "allOf" and now == "allOf":
            missing = [n for n, one in enumerate(parts_new) if not any(self._fits(one, had) for had in parts_old)]
            code, why = "PRODUCT_TYPE_EXTENDED", "allOf demands more"
        else:
            missing = [n for n, had in enumerate(parts_old) if not any(self._fits(one, had) for one in parts_new)]
            code, why = "SUM_TYPE_NARROWED", f"{before} accepts less"
        if missing:
            self._tell(code, f"{place}/{now}/{missing[0]}", why)

    def _negated(self, place: str, new: dict[str, Any], old: dict[str, Any]) -> None:
        if "not" not in new:
            return
        opposite = Comparing(self._old, self._new)
        if "not" in old:
            opposite.compare("#", old["not"], new["not"])
        if "not" not in old or opposite.found:
            self._tell("NOT_TYPE_EXTENDED", f"{place}/not", "more is excluded")

    # -- single values

    def _types(self, place: str, new: dict[str, Any], old: dict[str, Any]) -> None:
        now, before = _types(new), _types(old)
        if "number" in now:
            now = now | {"integer"}
        if before - now:
            code = "TYPE_NARROWED" if before & now else "TYPE_CHANGED"
            self._tell(code, place, f"type was {_named(before)}, now {_named(_types(new))}")

    def _values(self, place: str, new: dict[str, Any], old: dict[str, Any]) -> None:
        for name, larger in LIMITS:
            if not _number(new.get(name)):
                continue
            if not _number(old.get(name)):
                if not (name.startswith("min") and new[name] == 0 and name != "minimum"):
                    self._tell(f"{_upper(name)}_ADDED", f"{place}/{name}", f"{name} is new")
            elif (new[name] < old[name]) if larger else (new[name] > old[name]):
                word = "DECREASED" if larger else "INCREASED"
                self._tell(f"{_upper(name)}_{word}", f"{place}/{name}", f"{name} accepts less")
        step, was = new.get("multipleOf"), old.get("multipleOf")
        if _number(step) and step and (not _number(was) or was % step):
            self._tell("MULTIPLE_OF_CHANGED" if was else "MULTIPLE_OF_ADDED", place, f"multipleOf {was} became {step}")
        if "pattern" in new and new["pattern"] != old.get("pattern"):
            self._tell(
                "PATTERN_CHANGED" if "pattern" in old else "PATTERN_ADDED", f"{place}/pattern", "another pattern"
            )
        if new.get("uniqueItems") is True and old.get("uniqueItems") is not True:
            self._tell("UNIQUE_ITEMS_ADDED", f"{place}/uniqueItems", "items must be unique")
        self._enumerated(place, new, old)

    def _enumerated(self, place: str, new: dict[str, Any], old: dict[str, Any]) -> None:
        now, before = _enum(new), _enum(old)
        if now is None:
            return
        if before is None:
            self._tell("ENUM_ARRAY_ADDED", f"{place}/enum", "values are enumerated that were not")
        elif before - now:
            self._tell("ENUM_ARRAY_NARROWED", f"{place}/enum", f"no longer {', '.join(sorted(before - now))}")

    # -- objects

    def _properties(self, place: str, new: dict[str, Any], old: dict[str, Any]) -> None:
        if "object" not in _types(new) & _types(old):
            return
        now, before = _members(new), _members(old)
        additional, former = new.get("additionalProperties", True), old.get("additionalProperties", True)
        self._additional(place, additional, former, "PROPERTIES")
        for name in now.keys() & before.keys():
            self.compare(f"{place}/properties/{name}", now[name], before[name])
        required = set(new.get("required") or ()) if isinstance(new.get("required"), list) else set()
        demanded = set(old.get("required") or ()) if isinstance(old.get("required"), list) else set()
        for name in sorted(required & now.keys() & before.keys() - demanded):
            if not _has_default(self._new.resolve(now[name])):
                self._tell("REQUIRED_ATTRIBUTE_ADDED", f"{place}/required/{name}", f"{name} became required")
        for name in sorted(now.keys() - before.keys()):
            self._added(f"{place}/properties/{name}", name, now[name], former, old, name in required)
        for name in sorted(before.keys() - now.keys()):
            self._removed(f"{place}/properties/{name}", name, before[name], additional, new)

    def _added(self, place: str, name: str, schema: Any, former: Any, old: dict[str, Any], required: bool) -> None:
        if required and not _has_default(self._new.resolve(schema)):
            self._tell("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", place, f"{name} is new and required")
        elif former is False:
            return
        elif _accepts_all(former):
            if not _accepts_all(schema):
                self._tell(
                    "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", place, f"{name} is new: old data may hold anything there"
                )
        elif not self._fits(schema, former):
            self._tell(
                "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                place,
                f"{name} does not fit what was allowed",
            )

    def _removed(self, place: str, name: str, schema: Any, additional: Any, new: dict[str, Any]) -> None:
        if schema is False or _accepts_all(additional):
            return
        if additional is False:
            self._tell(
                "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", place, f"{name} is gone, and no other may be there"
            )
        elif not self._fits(additional, schema):
            self._tell(
                "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                place,
                f"{name} does not fit what is allowed",
            )

    def _additional(self, place: str, new: Any, old: Any, what: str) -> None:
        if _accepts_all(new) or old is False:
            return
        if new is False or _accepts_all(old):
            code = "REMOVED" if new is False else "NARROWED"
            self._tell(
                f"ADDITIONAL_{what}_{code}", f"{place}/additional{what.title()}", f"other {what.lower()} are refused"
            )
        else:
            self.compare(f"{place}/additional{what.title()}", new, old)

    # -- arrays

    def _items(self, place: str, new: dict[str, Any], old: dict[str, Any]) -> None:
        if "array" not in _types(new) & _types(old):
            return
        (now, rest), (before, former) = _tuple(new), _tuple(old)
        for index in range(max(len(now), len(before))):
            schema = now[index] if index < len(now) else rest
            had = before[index] if index < len(before) else former
            self.compare(f"{place}/items/{index}", schema, had)
        if not _accepts_all(rest) and former is not False:
            if rest is False:
                self._tell("ADDITIONAL_ITEMS_REMOVED", f"{place}/additionalItems", "other items are refused")
            else:
                self.compare(f"{place}/items", rest, former)


def _accepts_all(schema: Any) -> bool:
    return schema is True or schema == {}


def _has_default(schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema


def _types(schema: dict[str, Any]) -> set[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list) and kind:
        return {str(one) for one in kind}
    return set(TYPES)


def _named(types: set[str]) -> str:
    return "anything" if types >= set(TYPES) else " or ".join(sorted(types))


def _members(schema: dict[str, Any]) -> dict[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _tuple(schema: dict[str, Any]) -> tuple[list[Any], Any]:
    """The schemas of the first items, and that of all others."""
    if isinstance(schema.get("prefixItems"), list):
        return schema["prefixItems"], schema.get("items", True)
    items = schema.get("items", True)
    return (items, schema.get("additionalItems", True)) if isinstance(items, list) else ([], items)


def _enum(schema: dict[str, Any]) -> set[str] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return {json.dumps(one, sort_keys=True) for one in values} if isinstance(values, list) else None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _upper(name: str) -> str:
    return "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in name)

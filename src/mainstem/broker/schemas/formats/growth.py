"""How much work it may be to check a value by a JSON Schema: whether time may double with each level of the value, or with
the schema's own size, and how often a single part of the value may be looked at.

A value is checked once for each alternative that looks at it. Where two of them lead back to a schema that holds them, each
level of the value doubles the work; where alternatives of alternatives share a `$ref`, the schema itself does.
"""

from __future__ import annotations

from typing import Any

from mainstem.broker.schemas.formats.json_compatibility import Resolver

CHECKS_MAX = 10_000  # of one value, levels of the value aside
ALTERNATIVES = ("allOf", "anyOf", "oneOf")
SINGLE = ("if", "then", "else", "not", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "contains")
NAMED = ("patternProperties", "dependentSchemas", "dependencies")
SHARED = ("properties", "items", "prefixItems", "additionalItems", "propertyNames")


def may_explode(document: Any, resolver: Resolver) -> bool:
    return _Weighing(resolver).explodes(document)


def checks_of_a_part(document: Any, resolver: Resolver) -> int:
    """How many schemas may look at one and the same part of a value, at most. For schemas that do not explode."""
    return _of_a_part(document, resolver, {})


def _of_a_part(schema: Any, resolver: Resolver, known: dict[int, int]) -> int:
    if not isinstance(schema, dict):
        return 1
    if id(schema) not in known:
        known[id(schema)] = 0  # what leads back to it looks at another part
        found = 1
        if isinstance(schema.get("$ref"), str):
            target = resolver.resolve(schema)
            found += _of_a_part(target, resolver, known) if target is not schema else 0
        for branch in _branches(schema):
            found += max(_of_a_part(one, resolver, known) for one in branch)
        known[id(schema)] = found
    return known[id(schema)]


class _Weighing:
    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._open: dict[int, bool] = {}  # schemas being weighed → whether one leads back to it
        self._known: dict[int, tuple[int, frozenset[int]]] = {}

    def explodes(self, document: Any) -> bool:
        try:
            return self._weigh(document)[0] > CHECKS_MAX
        except _Doubles:
            return True

    def _weigh(self, schema: Any) -> tuple[int, frozenset[int]]:
        """(checks, the schemas above that it leads back to)."""
        if not isinstance(schema, dict):
            return 1, frozenset()
        if isinstance(schema.get("$ref"), str):
            target = self._resolver.resolve(schema)
            if not isinstance(target, dict) or target is schema:
                return 1, frozenset()
            beside = {name: part for name, part in schema.items() if name != "$ref" and name != "$defs"}
            if not beside.keys() & {*ALTERNATIVES, *SINGLE, *NAMED, *SHARED}:
                return self._weigh(target)
            return self._sum([self._weigh(target), self._weigh(beside)])
        if id(schema) in self._open:
            return 1, frozenset([id(schema)])
        known = self._known.get(id(schema))
        if known is not None:
            return known
        self._open[id(schema)] = True
        found = self._sum([self._weigh_all(branch) for branch in _branches(schema)])
        del self._open[id(schema)]
        result = found[0] + 1, found[1] - {id(schema)}
        self._known[id(schema)] = result
        if result[0] > CHECKS_MAX:
            raise _Doubles
        return result

    def _weigh_all(self, schemas: list[Any]) -> tuple[int, frozenset[int]]:
        """Of schemas that look at different parts of a value."""
        found = [self._weigh(one) for one in schemas]
        return sum(one[0] for one in found), frozenset().union(*(one[1] for one in found))

    @staticmethod
    def _sum(branches: list[tuple[int, frozenset[int]]]) -> tuple[int, frozenset[int]]:
        back: frozenset[int] = frozenset()
        for _, leads in branches:
            if back and leads:
                raise _Doubles
            back |= leads
        return sum(one[0] for one in branches), back


class _Doubles(Exception):
    pass


def _branches(schema: dict[str, Any]) -> list[list[Any]]:
    """What may look at the same part of a value, each with schemas that look at different parts."""
    shared: list[Any] = []
    for name in SHARED:
        part = schema.get(name)
        if name == "properties" and isinstance(part, dict):
            shared += part.values()
        elif isinstance(part, list):
            shared += part
        elif part is not None:
            shared.append(part)
    found = [shared] if shared else []
    for name in ALTERNATIVES:
        if isinstance(schema.get(name), list):
            found += [[one] for one in schema[name]]
    for name in NAMED:
        if isinstance(schema.get(name), dict):
            found += [[one] for one in schema[name].values()]
    return found + [[schema[name]] for name in SINGLE if isinstance(schema.get(name), dict)]

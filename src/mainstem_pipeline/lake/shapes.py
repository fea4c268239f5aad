"""The shape of JSON values: which fields they have, of which kinds, learned from them and kept as columns of a table.

| in the values | kind | column |
|---|---|---|
| true, false | `boolean` | boolean |
| numbers without a fraction, up to 64 bits | `long`, or `fixed long` | long |
| numbers | `double` | double |
| text | `string` | string |
| lists | `Items` | list, of one kind of item |
| objects | `Fields` | struct |

A shape only grows: a field that is new gets a column, also inside structs and lists. A kind once known stays, but that a
`long` which meets a fraction becomes a `double`; a `fixed long` (its column cannot be replaced) does not. What has no place
in the shape is the rest. A column is called as its field, with `_` for what a name in SQL may not have; then its `doc` is
the field's name.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

COLUMNS_MAX = 500  # that hold values; structs count by what is in them
DEPTH_MAX = 8  # of structs and lists in each other; what lies deeper is the rest
BOOLEAN, LONG, FIXED, DOUBLE, STRING = "boolean", "long", "fixed long", "double", "string"
KINDS = {bool: BOOLEAN, int: LONG, float: DOUBLE, str: STRING}
LONG_MAX = (1 << 63) - 1
ARROW = {BOOLEAN: pa.bool_(), LONG: pa.int64(), FIXED: pa.int64(), DOUBLE: pa.float64(), STRING: pa.string()}
OWN = ("_log", "_offset", "_topic", "_timestamp", "_key")
TOLD = ("_rest", "_reason", "_value")


@dataclass(slots=True)
class Items:
    """A list."""

    of: Any  # a kind


@dataclass(slots=True)
class Fields:
    """An object: what a field is called in the JSON → its column's name and its kind."""

    named: dict[str, tuple[str, Any]] = field(default_factory=dict)

    def leaves(self) -> int:
        return sum(_leaves(kind) for _, kind in self.named.values())

    def has_column(self, name: str) -> bool:
        lower = name.lower()
        return any(known.lower() == lower for known, _ in self.named.values())


def _leaves(kind: Any) -> int:
    if isinstance(kind, Fields):
        return kind.leaves()
    return _leaves(kind.of) if isinstance(kind, Items) else 1


# -- learning


class Learner:
    """Grows a copy of a shape by values, or by what others have learned."""

    def __init__(self, base: Fields) -> None:
        self._base = base
        self.fields = copy.deepcopy(base)
        self._room = COLUMNS_MAX - base.leaves()

    @property
    def has_grown(self) -> bool:
        return self.fields != self._base

    def learn(self, value: dict[str, Any]) -> None:
        self._learn(self.fields, value, 0)

    def join(self, other: Fields) -> None:
        """What another learned from the same base."""
        self._join(self.fields, other, 0)

    def _learn(self, fields: Fields, value: dict[str, Any], depth: int) -> None:
        for key, one in value.items():
            if one is not None:
                known = fields.named.get(key)
                self._note(fields, key, known, self._kind(known[1] if known else None, one, depth + 1), depth)

    def _note(self, fields: Fields, key: str, known: tuple[str, Any] | None, kind: Any, depth: int) -> None:
        if kind is None:
            return
        name = known[0] if known else column_name(key)
        if known is None and (fields.has_column(name) or (depth == 0 and name in (*OWN, *TOLD))):
            return
        fields.named[key] = name, kind

    def _kind(self, known: Any, value: Any, depth: int) -> Any:
        """The kind of a place that had the kind `known` (None: none yet) after this value; None: nothing can be said."""
        if isinstance(value, dict | list):
            return self._nested(known, value, depth)
        kind = KINDS.get(type(value))
        if kind == LONG and not -LONG_MAX - 1 <= value <= LONG_MAX:
            return known
        return self._plain(known, kind)

    def _plain(self, known: Any, kind: str | None) -> Any:
        if known is None and kind is not None and self._room > 0:
            self._room -= 1
            return kind
        return DOUBLE if known == LONG and kind == DOUBLE else known

    def _nested(self, known: Any, value: dict[str, Any] | list[Any], depth: int) -> Any:
        if depth >= DEPTH_MAX:
            return known
        if isinstance(value, dict):
            inside = Fields() if known is None else known
            if not isinstance(inside, Fields):
                return known
            self._learn(inside, value, depth)
            return inside if inside.named else known
        if known is not None and not isinstance(known, Items):
            return known
        of = known.of if known is not None else None
        for item in value:
            if item is not None:
                of = self._kind(of, item, depth + 1)
        return Items(of) if of is not None else known

    def _join(self, fields: Fields, other: Fields, depth: int) -> None:
        for key, (_, theirs) in other.named.items():
            known = fields.named.get(key)
            self._note(fields, key, known, self._joined(known[1] if known else None, theirs, depth + 1), depth)

    def _joined(self, known: Any, theirs: Any, depth: int) -> Any:
        if isinstance(theirs, Fields):
            inside = Fields() if known is None else known
            if not isinstance(inside, Fields):
                return known
            self._join(inside, theirs, depth)
            return inside if inside.named else known
        if isinstance(theirs, Items):
            if known is not None and not isinstance(known, Items):
                return known
            of = self._joined(known.of if known is not None else None, theirs.of, depth + 1)
            return Items(of) if of is not None else known
        return self._plain(known, theirs)


def column_name(key: str) -> str:
    return re.sub(r"\W", "_", key) or "_"


# -- values in a shape


def fitted(fields: Fields, value: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(columns, the rest) of a value: what has a place in the shape, by its column's name, and what has none, as it came."""
    row: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for key, one in value.items():
        if one is None:
            continue
        known = fields.named.get(key)
        found, left = _fit(known[1], one) if known is not None else (None, one)
        if found is not None and known is not None:
            row[known[0]] = found
        if left is not None:
            rest[key] = left
    return row, rest


def _fit(kind: Any, value: Any) -> tuple[Any, Any]:
    if isinstance(kind, Fields):
        if not isinstance(value, dict):
            return None, value
        row, rest = fitted(kind, value)
        return row, rest or None
    if isinstance(kind, Items):
        if not isinstance(value, list):
            return None, value
        items = [(None, None) if one is None else _fit(kind.of, one) for one in value]
        return (None, value) if any(left is not None for _, left in items) else ([one for one, _ in items], None)
    known = KINDS.get(type(value))
    if kind == DOUBLE and known in (LONG, DOUBLE):
        return float(value), None
    if known == (LONG if kind == FIXED else kind) and (known != LONG or -LONG_MAX - 1 <= value <= LONG_MAX):
        return value, None
    return None, value


# -- as columns


def arrow_of(kind: Any, *, by_key: bool) -> pa.DataType:
    """`by_key`: with the fields' names as the JSON has them, else with the columns'."""
    if isinstance(kind, Fields):
        return pa.struct(
            [(key if by_key else name, arrow_of(one, by_key=by_key)) for key, (name, one) in kind.named.items()]
        )
    return pa.list_(arrow_of(kind.of, by_key=by_key)) if isinstance(kind, Items) else ARROW[kind]


def iceberg_fields(fields: Fields) -> list[Any]:
    """The columns as Iceberg's; a catalog gives them ids of its own."""
    from pyiceberg import types as t

    plain: dict[str, Any] = {
        BOOLEAN: t.BooleanType(),
        LONG: t.LongType(),
        FIXED: t.LongType(),
        DOUBLE: t.DoubleType(),
        STRING: t.StringType(),
    }
    numbers = iter(range(10_000, 10_000_000))

    def made(kind: Any) -> Any:
        if isinstance(kind, Fields):
            return t.StructType(*columns(kind))
        if isinstance(kind, Items):
            return t.ListType(next(numbers), made(kind.of), element_required=False)
        return plain[kind]

    def columns(of: Fields) -> Iterator[Any]:
        for key, (name, kind) in of.named.items():
            yield t.NestedField(next(numbers), name, made(kind), doc=key if key != name else None)

    return list(columns(fields))


def fields_of(schema: Schema, fixed: frozenset[str] | None = frozenset()) -> Fields:
    """The shape that a table has. `fixed`: top columns whose longs stay longs; None: all of them.

    A column of another type is somebody else's, and nothing is put into it.
    """
    from pyiceberg import types as t

    plain: dict[Any, str] = {t.BooleanType: BOOLEAN, t.LongType: LONG, t.DoubleType: DOUBLE, t.StringType: STRING}

    def kind(of: Any, long: str) -> Any:
        if isinstance(of, t.StructType):
            return inside(of.fields, long)
        if isinstance(of, t.ListType):
            item = kind(of.element_type, long)
            return Items(item) if item is not None else None
        found = plain.get(type(of))
        return long if found == LONG else found

    def inside(columns: Any, long: str | None) -> Fields:
        made = Fields()
        for one in columns:
            how = long or (FIXED if fixed is None or one.name in fixed else LONG)
            if (found := kind(one.field_type, how)) is not None:
                made.named[one.doc or one.name] = one.name, found
        return made

    return inside([one for one in schema.fields if one.name not in (*OWN, *TOLD)], None)


def widened(before: Fields, after: Fields) -> set[str]:
    """Top columns in which somewhere a long has become a double."""

    def wider(old: Any, new: Any) -> bool:
        if isinstance(old, Fields) and isinstance(new, Fields):
            return any(key in new.named and wider(one, new.named[key][1]) for key, (_, one) in old.named.items())
        if isinstance(old, Items) and isinstance(new, Items):
            return wider(old.of, new.of)
        return bool(old == LONG and new == DOUBLE)

    return {
        name for key, (name, kind) in before.named.items() if key in after.named and wider(kind, after.named[key][1])
    }

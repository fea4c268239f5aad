"""How rows lie in tables: the one place that knows columns, keys and documents, for every store that speaks SQL.

row (dataclass) ⇄ columns, in the order of its fields; a Document is JSON text with sorted keys; the first
`key_count` columns are the primary key
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mainstem.metadata.rows import (
    Document,
    Facts,
    Item,
    LogRow,
    NamespaceRow,
    Row,
    SlotRow,
    SpanRow,
    TopicRow,
    Value,
    ViewRow,
)

Mark = Callable[[int], str]  # the nth parameter as the store's SQL writes it: `?`, or `$n`
CHANGES_KEPT = 2_000  # rows of `changes`; who asks for older ones loads everything


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    row: type[Row]
    columns: tuple[str, ...]
    key_count: int
    documents: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        return self.columns[: self.key_count]

    def values(self, row: Row) -> tuple[Any, ...]:
        return tuple(
            document_text(getattr(row, name)) if name in self.documents else getattr(row, name) for name in self.columns
        )

    def key_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(getattr(row, name) for name in self.key)

    def row_of(self, values: Sequence[Any]) -> Row:
        named = zip(self.columns, values, strict=True)
        return self.row(*(json.loads(value) if name in self.documents else value for name, value in named))

    def upsert(self, mark: Mark) -> str:
        """Insert, or replace the row with the same primary key; a clash with another unique name is an error."""
        marks = ", ".join(mark(n) for n in range(1, len(self.columns) + 1))
        rest = ", ".join(f'"{name}" = excluded."{name}"' for name in self.columns[self.key_count :])
        return (
            f"INSERT INTO {self.name} ({_names(self.columns)}) VALUES ({marks}) "
            f"ON CONFLICT ({_names(self.key)}) DO UPDATE SET {rest}"
        )

    def select(self, columns: Sequence[str] = (), mark: Mark = str) -> str:
        return f"SELECT {_names(self.columns)} FROM {self.name}{_where(columns, mark)} ORDER BY {_names(self.key)}"

    def delete(self, columns: Sequence[str], mark: Mark) -> str:
        return f"DELETE FROM {self.name}{_where(columns, mark)}"


def _names(columns: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)


def _where(columns: Sequence[str], mark: Mark) -> str:
    tests = " AND ".join(f'"{name}" = {mark(n)}' for n, name in enumerate(columns, 1))
    return f" WHERE {tests}" if tests else ""


def _table(name: str, row: type[Row], key_count: int, *documents: str) -> Table:
    return Table(name, row, tuple(field.name for field in fields(row)), key_count, documents)


TABLES: dict[type[Row], Table] = {
    table.row: table
    for table in (
        _table("namespaces", NamespaceRow, 1, "options"),
        _table("topics", TopicRow, 1, "config"),
        _table("logs", LogRow, 1, "policy"),
        _table("spans", SpanRow, 3),
        _table("views", ViewRow, 1, "options"),
        _table("view_slots", SlotRow, 2),
        _table("items", Item, 3, "body"),
        _table("kv", Value, 1),
    )
}


def fill(facts: Facts, table: Table, rows: Sequence[Sequence[Any]]) -> None:
    """The rows of one table, as they were selected, into the facts."""
    if table.row is Value:
        facts.kv = {key: bytes(value) for key, value in rows}
    else:
        getattr(facts, table.name).extend(table.row_of(row) for row in rows)


def clear_namespace(mark: Mark) -> tuple[str, ...]:
    """Statements that delete a namespace and everything in it; each takes its name once."""
    of = f"namespace = {mark(1)}"
    return (
        f"DELETE FROM spans WHERE topic_id IN (SELECT id FROM topics WHERE {of})",
        f"DELETE FROM view_slots WHERE view_id IN (SELECT id FROM views WHERE {of})",
        *(f"DELETE FROM {table} WHERE {of}" for table in ("topics", "logs", "views", "items")),
        f"DELETE FROM namespaces WHERE name = {mark(1)}",
    )


def document_text(document: Document) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def key_text(key: Sequence[Any]) -> str:
    return json.dumps(list(key), separators=(",", ":"), ensure_ascii=False)

"""What a statement's WHERE says of the bytes of the records that it means, so that the rest is never decoded.

DuckDB gives its own syntax tree of the statement. Of each SELECT over one name the terms of its WHERE that a record must
fulfil are taken as a query of `mainstem search`, and the reader then passes over what cannot mean it: blocks by the part's
search index, batches by looking for the bytes. Whatever is not understood says nothing; DuckDB checks every row that is
read. A name that the statement uses in several places is read for all of them, so it must be narrowed by each.

    text = 'a b'   text like 'a b%'   contains(text, 'a b')   starts_with ends_with ilike
    key = 'k'      key in ('k', 'l')  header_of(headers, 'region') = 'eu'
    (json->>'$.user.id') = 'u7'       json_extract_string(json, '$.n') is not null, or compared with anything
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mainstem_ask.search.language import EVERYTHING, Both, Compared, Either, Literal, Node, Word, folded
from mainstem_ask.sql.statement import PATH, steps_of

if TYPE_CHECKING:
    import duckdb

Tree = Mapping[str, Any]
Wanted = Mapping[tuple[str, ...], Node]  # name, as its parts in lower case → what its records must be
_NEEDS_A_VALUE = re.compile(r"COMPARE_(NOT)?(EQUAL|GREATERTHAN|GREATERTHANOREQUALTO|LESSTHAN|LESSTHANOREQUALTO)")
_AS_NUMBERS_ARE_SHOWN = re.compile(r"[-+]?(\d.*|inf(inity)?|nan)", re.IGNORECASE | re.DOTALL)
_WILD = re.compile(r"[%_]")
# Letters beyond ASCII have small letters within it (the Kelvin sign k, the dotted capital I i), so ILIKE finds these, too.
_WILD_IN_ANY_CASE = re.compile(r"[%_kKiI]|[^\x00-\x7f]")


def wanted_of(fresh: duckdb.DuckDBPyConnection, sql: str) -> Wanted:
    """For each name that the statement narrows."""
    found = fresh.execute("select json_serialize_sql(?)", [sql]).fetchone()
    tree = json.loads(found[0]) if found is not None else {}
    if tree.get("error"):
        return {}
    uses: dict[tuple[str, ...], list[Node]] = {}
    shadowed = {str(one.get("key", "")).lower() for each in _all(tree, "cte_map") for one in each.get("map", ())}
    for table, where in _tables(tree, None):
        uses.setdefault(_name(table), []).append(_meant(where, table) if where else EVERYTHING)
    return {
        name: wanted
        for name, nodes in uses.items()
        if name[-1] not in shadowed and (wanted := _either(nodes)) != EVERYTHING
    }


def _name(table: Tree) -> tuple[str, ...]:
    parts = (table.get("catalog_name"), table.get("schema_name"), table.get("table_name"))
    return tuple(part.lower() for part in parts if part)


def _all(tree: Any, key: str) -> Iterator[Any]:
    if isinstance(tree, dict):
        if key in tree:
            yield tree[key]
        for one in tree.values():
            yield from _all(one, key)
    elif isinstance(tree, list):
        for one in tree:
            yield from _all(one, key)


def _tables(tree: Any, where: Tree | None) -> Iterator[tuple[Tree, Tree | None]]:
    """Every table of the statement, with the WHERE that stands directly over it, if one does."""
    if isinstance(tree, list):
        for one in tree:
            yield from _tables(one, None)
    elif isinstance(tree, dict):
        if tree.get("type") == "BASE_TABLE":
            yield tree, where if not (tree.get("sample") or tree.get("column_name_alias")) else None
        for key, one in tree.items():
            alone = key == "from_table" and not tree.get("sample")
            yield from _tables(one, tree.get("where_clause") if alone else None)


# -- terms ---------------------------------------------------------------------------------------------------------


def _meant(term: Tree, table: Tree) -> Node:
    kind = str(term.get("type"))
    if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
        parts = [_meant(one, table) for one in term["children"]]
        return _either(parts) if kind == "CONJUNCTION_OR" else _both(parts)
    if kind == "FUNCTION":
        return _function(term, table)
    if kind == "COMPARE_IN":
        first, *others = term["children"]
        return _either([_equal(first, other, table) for other in others])
    if kind == "OPERATOR_IS_NOT_NULL":
        return _there(term["children"][0], table)
    if _NEEDS_A_VALUE.fullmatch(kind):
        left, right = term["left"], term["right"]
        if kind == "COMPARE_EQUAL":
            return _both([_equal(left, right, table), _equal(right, left, table)])
        return _both([_there(left, table), _there(right, table)])
    return _there(term["input"], table) if kind == "COMPARE_BETWEEN" else EVERYTHING


def _both(parts: Sequence[Node]) -> Node:
    kept = [one for one in parts if one != EVERYTHING]
    return kept[0] if len(kept) == 1 else Both(tuple(kept))


def _either(parts: Sequence[Node]) -> Node:
    if not parts or EVERYTHING in parts:
        return EVERYTHING
    return parts[0] if len(parts) == 1 else Either(tuple(parts))


def _function(term: Tree, table: Tree) -> Node:
    name, values = term["function_name"], term["children"]
    made = _PATTERNS.get(name)
    if made is None or len(values) != 2 or _column(values[0], table) != "text":
        return EVERYTHING
    pattern = _text(values[1])
    return made(pattern) if pattern is not None else EVERYTHING


def _equal(left: Tree, right: Tree, table: Tree) -> Node:
    text = _text(right)
    if text is None:
        return _there(left, table)
    column = _column(left, table)
    if column == "text":
        return Word(folded(text)) if text else EVERYTHING
    if column == "key":  # written as a BLOB, where a backslash begins a byte
        return Compared("key", (), "=", Literal(text, quoted=True)) if text and "\\" not in text else EVERYTHING
    header = _header(left, table)
    if header is not None:
        return Compared(f"header.{header}", (), "=", Literal(text, quoted=True))
    path = _path(left, table)
    if path is None:
        return _there(left, table)
    if not text or _AS_NUMBERS_ARE_SHOWN.fullmatch(text) or text[0] in "[{":
        return Compared("", path, "exists", Literal("*"))  # numbers and what is nested are shown in DuckDB's spelling
    return Compared("", path, "=", Literal(text, quoted=True))


def _there(term: Tree, table: Tree) -> Node:
    """A field that must have a value, whatever it is cast to."""
    while term.get("type") == "OPERATOR_CAST":
        term = term["child"]
    path = _path(term, table)
    return Compared("", path, "exists", Literal("*")) if path is not None else EVERYTHING


# -- what a term speaks of -----------------------------------------------------------------------------------------------


def _column(term: Tree, table: Tree) -> str | None:
    """The name of a column of this table, in lower case."""
    names = [str(one).lower() for one in term.get("column_names", ())] if term.get("type") == "COLUMN_REF" else []
    of_it = names[:-1] in ([], [str(table.get("alias") or table.get("table_name")).lower()])
    return names[-1] if names and of_it else None


def _text(term: Tree) -> str | None:
    if term.get("type") != "VALUE_CONSTANT" or term["value"].get("is_null"):
        return None
    value = term["value"].get("value")
    return value if isinstance(value, str) and term["value"]["type"]["id"] == "VARCHAR" else None


def _path(term: Tree, table: Tree) -> tuple[str | int, ...] | None:
    if term.get("function_name") not in ("->>", "json_extract_string") or len(term["children"]) != 2:
        return None
    column, path = _column(term["children"][0], table), _text(term["children"][1])
    return steps_of(path) if column == "json" and path is not None and re.fullmatch(PATH, path, re.ASCII) else None


def _header(term: Tree, table: Tree) -> str | None:
    if term.get("function_name") != "header_of" or len(term["children"]) != 2:
        return None
    return _text(term["children"][1]) if _column(term["children"][0], table) == "headers" else None


# -- patterns --------------------------------------------------------------------------------------------------------


def _like(pattern: str, wild: re.Pattern[str] = _WILD) -> Node:
    """The pieces between the wildcards. One that a wildcard stands beside may be the middle of a word."""
    parts: list[Node] = []
    at = 0
    for end in [*(found.start() for found in wild.finditer(pattern)), len(pattern)]:
        if end > at:
            parts.append(Word(folded(pattern[at:end]), prefix=end < len(pattern), suffix=at > 0))
        at = end + 1
    return _both(parts)


def _within(text: str, *, prefix: bool, suffix: bool) -> Node:
    return Word(folded(text), prefix=prefix, suffix=suffix) if text else EVERYTHING


def _starts(text: str) -> Node:
    return _within(text, prefix=True, suffix=False)


def _ends(text: str) -> Node:
    return _within(text, prefix=False, suffix=True)


_PATTERNS: dict[str, Callable[[str], Node]] = {
    "~~": _like,
    "~~*": lambda pattern: _like(pattern, _WILD_IN_ANY_CASE),
    "contains": lambda text: _within(text, prefix=True, suffix=True),
    "starts_with": _starts,
    "prefix": _starts,
    "^@": _starts,
    "ends_with": _ends,
    "suffix": _ends,
}

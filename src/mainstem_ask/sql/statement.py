"""A statement before it runs: which it may be, how it may be spelled, and the names it uses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mainstem.model.errors import InvalidArgument
from mainstem_ask.sql.columns import Field

if TYPE_CHECKING:
    import duckdb

RELATIONS_MAX = 50  # in one statement
STATEMENT_BYTES_MAX = 1 << 20
_TOKEN = re.compile(
    r"""(?P<kept>'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
      | `(?P<back>(?:[^`]|``)*)`
      | (?P<word>[A-Za-z_]\w*)""",
    re.VERBOSE | re.DOTALL,
)
_CLAUSE = re.compile(r"\s+(\d|\?|\$)")  # LIMIT 5 OFFSET 3
PATH = r"(?:\$(?:\.[A-Za-z_]\w*|\[\d{1,6}\]){1,16}|[A-Za-z_]\w*)"
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_FIELD = re.compile(
    rf"json\s*->>\s*'(?P<arrow>{PATH})' | json_extract_string\s*\(\s*json\s*,\s*'(?P<call>{PATH})'\s*\)",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_BEFORE = re.compile(r"(?:[(,]|\b(?:select|by|distinct))\s*$", re.IGNORECASE)
_BEHIND = re.compile(r"\s*(?:[),]|$|(?:as|from)\b)", re.IGNORECASE)
_OTHER_WORDS = ("json", "natural", "columns", "pivot", "unpivot")
_PART = re.compile(r'"((?:[^"]|"")*)"|([^."\s]+)')
# They tell of the machine, or run another statement inside this one.
_REFUSED = re.compile(
    r"(pragma_|duckdb_|query$|query_table$|sqlite_|pg_|which_secret|checkpoint|force_checkpoint)", re.I
)


def spelled(text: str) -> str:
    """The statement as DuckDB reads it: back-ticks quote names too, and `offset` is a column where it is not a clause."""

    def replaced(found: re.Match[str]) -> str:
        if found["back"] is not None:
            return '"' + found["back"].replace("``", "`").replace('"', '""') + '"'
        word = found["word"]
        if word is not None and word.lower() == "offset" and not _CLAUSE.match(text, found.end()):
            return f'"{word}"'
        return found[0]

    return _TOKEN.sub(replaced, text.strip().rstrip(";"))


def admitted(fresh: duckdb.DuckDBPyConnection, text: str) -> str:
    """One SELECT (or EXPLAIN of one), which names no function that reaches beyond its tables."""
    import duckdb

    if len(text.encode()) > STATEMENT_BYTES_MAX:
        raise InvalidArgument(f"the statement has more than {STATEMENT_BYTES_MAX} bytes")
    sql = spelled(text)
    try:
        statements = fresh.extract_statements(sql)
    except duckdb.Error as error:
        raise InvalidArgument(said(error)) from None
    if len(statements) != 1:
        raise InvalidArgument(f"one statement is answered at a time, not {len(statements)}")
    kinds = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
    if statements[0].type not in kinds or re.match(r"\s*(pragma|show|describe|call)\b", sql, re.IGNORECASE):
        raise InvalidArgument(
            "only SELECT is answered: the log is read here, never changed",
            fix="mainstem sql runs every statement that Spark knows",
        )
    for found in _TOKEN.finditer(sql):
        if found["word"] and _REFUSED.match(found["word"]) and re.match(r"\s*\(", sql[found.end() :]):
            raise InvalidArgument(f"the function {found['word']} is not for statements over topics")
    return sql


def with_fields(sql: str) -> tuple[str, dict[str, Field]]:
    """The statement with columns in place of the fields of `json` that it names by a constant path, and these fields. What
    it calls `json` must be the log's own: one that says `json` in any other place is left as it is."""
    fields: dict[str, Field] = {}
    places: list[tuple[int, int, str]] = []
    for found in _TOKEN.finditer(sql):
        word = (found["word"] or "").lower()
        made = _FIELD.match(sql, found.start()) if word in ("json", "json_extract_string") else None
        if made is not None and (made["call"] or _stands_alone(sql, made)):
            path = made["call"] or made["arrow"]
            name = f"json_extract_string(json, '{path}')" if made["call"] else f"(json ->> '{path}')"
            fields[name] = Field(steps_of(path), f"try_cast(text as json)->>'{path}'")
            places.append((made.start(), made.end(), name))
        elif word in _OTHER_WORDS and not (places and places[-1][0] <= found.start() < places[-1][1]):
            return sql, {}
    for start, end, name in reversed(places):
        sql = sql[:start] + '"' + name + '"' + sql[end:]
    return sql, fields


def _stands_alone(sql: str, made: re.Match[str]) -> bool:
    """`->>` binds less than nearly everything: only between these is it sure what belongs to it."""
    return bool(_BEFORE.search(sql[: made.start()]) and _BEHIND.match(sql, made.end()))


def steps_of(path: str) -> tuple[str | int, ...]:
    if not path.startswith("$"):
        return (path,)
    return tuple(name or int(index) for name, index in _STEP.findall(path))


def names_in(fresh: duckdb.DuckDBPyConnection, sql: str) -> list[list[str]]:
    """The relations of a statement, each as its dotted parts."""
    import duckdb

    try:
        found = fresh.get_table_names(sql, qualified=True)
    except duckdb.Error as error:
        raise InvalidArgument(said(error)) from None
    if len(found) > RELATIONS_MAX:
        raise InvalidArgument(f"the statement uses more than {RELATIONS_MAX} relations")
    return [list(one) for one in sorted({tuple(_parts(name)) for name in found})]


def _parts(name: str) -> list[str]:
    """`"a/#" AS t` as [a/#], `lake.t` as [lake, t]."""
    parts, at = [], 0
    while (found := _PART.match(name, at)) is not None:
        parts.append(found[1].replace('""', '"') if found[1] is not None else found[2])
        at = found.end()
        if name[at : at + 1] != ".":
            break
        at += 1
    return parts


def said(error: Exception) -> str:
    """DuckDB's message in one line, with the part of the statement it points to."""
    lines = [line.strip() for line in str(error).splitlines()]
    where = next((line for line in lines if line.startswith("LINE ")), "")
    first = re.sub(r"^\w+ Error: ", "", lines[0]) if lines else type(error).__name__
    hint = next((line for line in lines[1:] if line.startswith(("Did you mean", "Candidate bindings"))), "")
    return "; ".join(one for one in (first, hint, where) if one)

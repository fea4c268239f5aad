"""A statement before it runs: which it may be, how it may be spelled, and the names it uses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mainstem.model.errors import InvalidArgument

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
_PART = re.compile(r'"((?:[^"]|"")*)"|([^."\s]+)')
# They tell of the machine, or run another statement inside this one.
_REFUSED = re.compile(
    r"(pragma_|duckdb_|query$|query_table$|sqlite_|pg_|which_secret|checkpoint|force_checkpoint)", re.I
)


def spelled(text: str) -> str:
    """The statement as DuckDB reads it: back-ticks quote names too, and `offset` is a column where it is no clause."""

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

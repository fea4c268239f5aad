"""Topic filters and views' conditions as Spark SQL, for rows that rest in tables."""

from __future__ import annotations

import re

from mainstem.model.condition import Term, parse_condition
from mainstem.model.topic_filter import MANY, ONE, filter_levels


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(value: str) -> str:
    """A SQL literal, whatever characters it has."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def topic_sql(topic_filter: bytes, column: str) -> str:
    """Whether a row's topic is meant by the filter. Names and prefixes are said so that files can be skipped by them."""
    levels, name = filter_levels(topic_filter), quoted(column)
    wild = [at for at, level in enumerate(levels) if level in (ONE, MANY)]
    if not wild:
        return f"{name} = {_text(b'/'.join(levels).decode())}"
    if wild == [len(levels) - 1] and levels[-1] == MANY and wild[0] > 0:
        prefix = b"/".join(levels[:-1]).decode()
        return f"({name} = {_text(prefix)} or startswith({name}, {_text(prefix + '/')}))"
    return f"concat('/', {name}) rlike {_text(filter_regex(levels))}"


def filter_regex(levels: list[bytes]) -> str:
    """For topics with a `/` in front, so that every level begins with one."""
    parts = {ONE: "/[^/]*", MANY: "(?:/[^/]*)*"}
    hidden = r"(?!/\$)" if levels[0] in (ONE, MANY) else ""  # no leading wildcard means a topic that begins with `$`
    body = "".join(parts.get(level) or "/" + _escaped(level.decode()) for level in levels)
    return f"^{hidden}{body}$(?!\\n)"


def _escaped(text: str) -> str:
    return re.sub(r"([\\.^$|?*+()\[\]{}])", r"\\\1", text)


def condition_sql(text: str) -> str:
    """A view's condition over the columns key and headers: a header that is not there differs from every text."""
    condition = parse_condition(text)
    return " and ".join(_term(term) for term in condition.terms) if condition is not None else "true"


def _term(term: Term) -> str:
    if term.header is None:
        found, value = "key is not null", "key"
    else:
        name = _text(term.header.decode("utf-8", "replace"))
        first = f"get(filter(headers, h -> h.key = {name}), 0)"  # of duplicates the first counts
        found, value = f"{first} is not null", f"{first}.value"
    if term.op == "exists":
        return f"({found})"
    literal = f"X'{term.text.hex()}'"
    if term.op == "^=":
        return f"coalesce(startswith({value}, {literal}), false)"
    equal = f"coalesce({value} = {literal}, false)"
    return f"(not {equal})" if term.op == "!=" else equal

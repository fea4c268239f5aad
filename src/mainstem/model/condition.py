"""A view's condition on key and headers: `key ^= 'dev-' and header.region = 'eu' and header.trace exists`.

    condition = term { "and" term }
    term      = field ( "=" | "!=" | "^=" ) 'text'  |  field "exists"
    field     = "key" | "header." name | "header.'any name'"

`^=` is a prefix. A header that is not there differs from every text; of duplicates the first counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mainstem.model.errors import InvalidArgument
from mainstem.model.record import Header

TERMS_MAX = 16
_TOKEN = re.compile(
    r"\s*(?:(?P<field>key\b|header\.(?:'(?:[^']|'')*'|[^\s=!^]+))|(?P<op>\^=|!=|=)|(?P<word>exists\b|and\b)|"
    r"(?P<text>'(?:[^']|'')*'))"
)


@dataclass(frozen=True, slots=True)
class Term:
    header: bytes | None  # None: the key
    op: str
    text: bytes

    def holds(self, key: bytes | None, headers: Sequence[Header]) -> bool:
        if self.header is None:
            found, value = key is not None, key
        else:
            found, value = next(((True, value) for name, value in headers if name == self.header), (False, None))
        if self.op == "exists":
            return found
        if self.op == "=":
            return value == self.text
        if self.op == "!=":
            return value != self.text
        return value is not None and value.startswith(self.text)


@dataclass(frozen=True, slots=True)
class Condition:
    text: str
    terms: tuple[Term, ...]

    @property
    def reads_headers(self) -> bool:
        return any(term.header is not None for term in self.terms)

    def holds(self, key: bytes | None, headers: Sequence[Header]) -> bool:
        return all(term.holds(key, headers) for term in self.terms)


def parse_condition(text: str) -> Condition | None:
    """None for an empty text; InvalidArgument, with the place, for one that cannot be read."""
    if not text.strip():
        return None
    tokens = _tokens(text)
    terms: list[Term] = []
    while tokens:
        terms.append(_term(tokens, text))
        if tokens and tokens.pop(0) != ("word", "and"):
            raise _wrong(text, "expected 'and' between two terms")
        elif not tokens and text.rstrip().endswith("and"):
            raise _wrong(text, "a term must follow 'and'")
    if len(terms) > TERMS_MAX:
        raise _wrong(text, f"{len(terms)} terms, at most {TERMS_MAX} are allowed")
    return Condition(text, tuple(terms))


def _term(tokens: list[tuple[str, str]], text: str) -> Term:
    kind, field = tokens.pop(0)
    if kind != "field":
        raise _wrong(text, f"expected key or header.NAME, found {field!r}")
    name = None if field == "key" else _unquoted(field.removeprefix("header.")).encode()
    kind, op = tokens.pop(0) if tokens else ("", "")
    if (kind, op) == ("word", "exists"):
        return Term(name, op, b"")
    if kind != "op":
        raise _wrong(text, f"expected =, !=, ^= or exists after {field}")
    kind, value = tokens.pop(0) if tokens else ("", "")
    if kind != "text":
        raise _wrong(text, f"expected a text in single quotes after {field} {op}")
    return Term(name, op, _unquoted(value).encode())


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise _wrong(text, f"cannot read {text[at:].strip()[:20]!r}")
        tokens.append((found.lastgroup, found.group(found.lastgroup)))
        at = found.end()
    return tokens


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'") if text.startswith("'") else text


def _wrong(text: str, reason: str) -> InvalidArgument:
    example = "key ^= 'dev-' and header.region = 'eu' and header.trace exists"
    return InvalidArgument(f"condition {text!r}: {reason}", fix=f'--where "{example}"')

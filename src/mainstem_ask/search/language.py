"""What a search means: `timeout AND status>=500`, parsed into a tree. Nothing here reads a record.

    either  = both { "OR" both }
    both    = one { ["AND"] one }                  two terms side by side are both wanted
    one     = ("NOT" | "-" | "!") one | "(" either ")" | term
    term    = word | prefix* | "a phrase" | field op value | field:*
    op      = =  !=  <  <=  >  >=  :               `:` looks for a word in the field

Fields are `$.user.id`, `$.items[0].sku`, or a bare name, which is one of FIELDS or else a JSON path: `status` is `$.status`.
Words are found in value and key, whole (between two bytes that are no letter, digit, `_` or beyond ASCII), in either case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mainstem.model.errors import InvalidArgument

FIELDS = ("key", "topic", "origin", "partition", "offset", "time", "size")
NUMBERED = re.compile(r"level\.([1-9]\d{0,2})")
HEADER = "header."
QUERY_CHARACTERS_MAX = 10_000
DEPTH_MAX = 100
TERMS_MAX = 500
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<op>>=|<=|!=|=|<|>|:)
      | (?P<mark>[()!]|-(?=[^\s\d]))
      | (?P<word>[^\s()"'=<>!:]+)
    )""",
    re.VERBOSE,
)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Literal:
    """What a field is compared with. A bare one is also the text of a number, a quoted one only text."""

    text: str
    quoted: bool = False

    @property
    def number(self) -> float | int | None:
        if self.quoted or not _NUMBER.fullmatch(self.text):
            return None
        return int(self.text) if re.fullmatch(r"-?\d+", self.text) else float(self.text)


@dataclass(frozen=True, slots=True)
class Word:
    """Bytes to be found in value or key, with ASCII letters in lower case."""

    folded: bytes
    prefix: bool = False  # the last word of it may go on
    suffix: bool = False  # the first may have begun before; no search says so, but `sql/wanted.py` does


@dataclass(frozen=True, slots=True)
class Compared:
    field: str  # one of FIELDS, level.N, header.NAME, or "" for a JSON path
    path: tuple[str | int, ...]
    op: str  # = != < <= > >= : exists
    literal: Literal


@dataclass(frozen=True, slots=True)
class Both:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Node


Node = Word | Compared | Both | Either | Not
EVERYTHING = Both(())


def parse_query(text: str) -> Node:
    if len(text) > QUERY_CHARACTERS_MAX:
        raise InvalidArgument(f"the query has more than {QUERY_CHARACTERS_MAX} characters")
    parser = _Parser(text)
    if parser.kind == "":
        return EVERYTHING
    found = parser.either(0)
    if parser.kind:
        raise parser.wrong(f"{parser.token!r} is not expected here")
    return found


def parse_path(text: str) -> tuple[str | int, ...]:
    """`$.a.b[0]` or `a.b[0]` as its steps."""
    body = text[1:] if text.startswith("$") else f".{text}"
    steps: list[str | int] = []
    at = 0
    while at < len(body):
        found = _STEP.match(body, at)
        if found is None:
            raise InvalidArgument(f"{text!r} is not a path", fix="$.user.id, or $.items[0].sku")
        steps.append(found[1] if found[1] is not None else int(found[2]))
        at = found.end()
    if not steps:
        raise InvalidArgument(f"{text!r} names no field", fix="$.user.id")
    return tuple(steps)


def required(node: Node) -> tuple[bytes, ...] | None:
    """Bytes of which at least one stands in every record that is meant; None if nothing can be said.

    They are looked for in stored batches before anything of them is decoded.
    """
    if isinstance(node, Word):
        return (node.folded,)
    if isinstance(node, Compared):
        if node.field == "key" and node.op in ("=", ":") and node.literal.text:
            return (folded(node.literal.text),)
        names = [step for step in node.path if isinstance(step, str)]
        # JSON may write any letter of a name as an escape, so a batch with a backslash is looked into, too.
        return (b'"' + folded(names[-1]) + b'"', b"\\") if names and not node.field else None
    if isinstance(node, Both):
        known = [one for one in map(required, node.parts) if one is not None]
        return max(known, key=lambda one: min(map(len, one)), default=None)
    if isinstance(node, Either):
        alternatives = [required(part) for part in node.parts]
        return tuple(dict.fromkeys(one for some in alternatives for one in some or ())) if all(alternatives) else None
    return None


def without_paths(node: Node) -> Node:
    """What the query says of a record's bytes where the fields of its value are not spelled in them: Avro, Protobuf."""
    if isinstance(node, Compared):
        return node if node.field else EVERYTHING
    if isinstance(node, Both | Either):
        return type(node)(tuple(map(without_paths, node.parts)))
    return node  # of what is not meant nothing is concluded


def uses(node: Node) -> set[str]:
    """The fields that are looked at, JSON paths as `value`."""
    if isinstance(node, Word):
        return {"value", "key"}
    if isinstance(node, Compared):
        return {node.field or "value"}
    parts: Sequence[Node] = (node.part,) if isinstance(node, Not) else node.parts
    return {name for part in parts for name in uses(part)}


def folded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape").translate(_LOWER)


_LOWER = bytes(one + 32 if 65 <= one <= 90 else one for one in range(256))


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._terms = text, 0, 0
        self.kind = self.token = ""
        self.column = 0
        self.advance()

    def advance(self) -> None:
        rest = self._text[self._at :]
        if not rest.strip():
            self.kind, self.token, self.column = "", "", len(self._text)
            return
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            self.column = self._at + len(rest) - len(rest.lstrip())
            raise self.wrong("a quote is not closed" if rest.lstrip()[0] in "\"'" else "cannot be read")
        self.kind = str(found.lastgroup)
        self.token, self.column, self._at = found[self.kind], found.start(self.kind), found.end()

    def wrong(self, what: str) -> InvalidArgument:
        return InvalidArgument(
            f"the query, at column {self.column + 1}: {what}", fix="mainstem search 'timeout AND status>=500'"
        )

    def _is_word(self, word: str) -> bool:
        return self.kind == "word" and self.token == word

    def either(self, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise self.wrong(f"more than {DEPTH_MAX} brackets deep")
        parts = [self._both(depth)]
        while self._is_word("OR"):
            self.advance()
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _both(self, depth: int) -> Node:
        parts = [self._one(depth)]
        while self.kind and self.token != ")" and not self._is_word("OR"):
            if self._is_word("AND"):
                self.advance()
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def _one(self, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise self.wrong(f"more than {DEPTH_MAX} times NOT")
        if self._is_word("NOT") or (self.kind == "mark" and self.token in "-!"):
            self.advance()
            return Not(self._one(depth + 1))
        if self.kind == "mark" and self.token == "(":
            self.advance()
            inner = self.either(depth + 1)
            if self.token != ")":
                raise self.wrong("a bracket is not closed")
            self.advance()
            return inner
        return self._term()

    def _term(self) -> Node:
        self._terms += 1
        if self._terms > TERMS_MAX:
            raise self.wrong(f"more than {TERMS_MAX} terms")
        if self.kind == "text":
            text = _unquoted(self.token)
            self.advance()
            return self._word(text, prefix=False)
        if self.kind != "word" or self.token in ("AND", "OR"):
            raise self.wrong(f"a word or a field is expected, not {self.token!r}" if self.kind else "a term is missing")
        word = self.token
        self.advance()
        if self.kind == "op":
            return self._compared(word)
        if word.startswith("$."):
            raise self.wrong(f"{word} is compared with nothing; {word}:* asks whether it is there")
        return self._word(word.rstrip("*"), prefix=True) if word.endswith("*") else self._word(word, prefix=False)

    def _word(self, text: str, *, prefix: bool) -> Word:
        found = folded(text)
        if not found:
            raise self.wrong("an empty word is in every record")
        return Word(found, prefix)

    def _compared(self, name: str) -> Compared:
        op = self.token
        self.advance()
        if self.kind not in ("word", "text"):
            raise self.wrong(f"{name}{op} needs a value")
        quoted = self.kind == "text"
        literal = Literal(_unquoted(self.token) if quoted else self.token, quoted)
        self.advance()
        if op == ":" and not quoted and literal.text == "*":
            op = "exists"
        if name in FIELDS or NUMBERED.fullmatch(name) or (name.startswith(HEADER) and len(name) > len(HEADER)):
            return Compared(name, (), op, literal)
        return Compared("", parse_path(name), op, literal)


def _unquoted(token: str) -> str:
    return re.sub(r"\\(.)", r"\1", token[1:-1])

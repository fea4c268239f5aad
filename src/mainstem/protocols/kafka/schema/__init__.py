"""Kafka's messages, as a table that people can read and `wire` turns into code.

    api 1 Fetch 4-18 flexible 12       key, name, versions, first version with compact lengths and tags
    request
      cluster_id string? v12+ #0 =null  may be null; from version 12; tagged field 0; null unless said
      replica_id i32 v-14 =-1           up to version 14
      topics [FetchTopic]               an array of a struct whose fields stand indented below
        topic string v-12
      rack_id string v11+
    response
      struct Endpoint                   a struct used in several places, named before it is used
      @leader                           the fields of that name in `fragments`

Types: bool i8 i16 u16 i32 u32 i64 f64 string bytes uuid records, `[type]` and struct names. `?7+` after a type: null
allowed from version 7. Without `v` a field is in every version; without `=` it is zero, false, empty.
The facts are those of Apache Kafka 4.3. Produce is listed from version 0 (see `adapter`), InitProducerId ends at 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mainstem.protocols.kafka.schema import (
    admin,
    connections,
    data,
    fragments,
    groups,
    security,
    shares,
    transactions,
)

TABLES = (data, connections, groups, transactions, admin, security, shares)
VERSION_MAX = 32_767
NEVER = VERSION_MAX + 1

SCALARS = {"bool": "?", "i8": "b", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "f64": "d"}


@dataclass(frozen=True, slots=True)
class Span:
    """Versions, both ends included."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    @staticmethod
    def read(text: str) -> Span:
        """`4+`, `-7`, `4-7`, `4` or nothing (all)."""
        if not text:
            return Span(0, VERSION_MAX)
        if text.endswith("+"):
            return Span(int(text[:-1]), VERSION_MAX)
        first, dash, last = text.partition("-")
        return Span(int(first or 0), int(last if dash else first))


@dataclass(slots=True)
class Field:
    name: str
    type: str  # of one element, if an array
    is_array: bool
    versions: Span
    nullable: Span | None
    tag: int | None
    default: str | None
    fields: list[Field] = field(default_factory=list)

    @property
    def is_struct(self) -> bool:
        return self.type[0].isupper()


@dataclass(slots=True)
class Shape:
    """One message: the fields of its body and the structs it names."""

    name: str
    fields: list[Field]
    structs: dict[str, list[Field]]


@dataclass(slots=True)
class Api:
    key: int
    name: str
    first: int
    last: int
    flexible: int
    request: Shape
    response: Shape

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible


def _field(words: list[str]) -> Field:
    kind, question, null_from = words[1].partition("?")
    parsed = Field(
        name=words[0],
        type=kind.strip("[]"),
        is_array=kind.startswith("["),
        versions=Span.read(""),
        nullable=Span.read(null_from) if question else None,
        tag=None,
        default=None,
    )
    for word in words[2:]:
        if word[0] == "v":
            parsed.versions = Span.read(word[1:])
        elif word[0] == "#":
            parsed.tag = int(word[1:])
        else:
            assert word[0] == "=", f"{word!r} of field {words[0]}"
            parsed.default = word[1:]
    return parsed


def _fragments() -> dict[str, list[str]]:
    blocks = (block.splitlines() for block in fragments.TABLE.strip().split("\n\n"))
    return {head: lines for head, *lines in blocks}


def _expand(lines: list[str]) -> Iterator[str]:
    for line in lines:
        word = line.lstrip()
        if word in FRAGMENTS:
            yield from (line[: -len(word)] + one for one in FRAGMENTS[word])
        else:
            yield line


FRAGMENTS = _fragments()


def _shape(name: str, lines: list[str]) -> Shape:
    shape = Shape(name, [], {})
    levels: list[list[Field]] = [shape.fields]  # the list that a line of each indentation belongs to
    for line in _expand(lines):
        depth = (len(line) - len(line.lstrip())) // 2
        words = line.split()
        if words[0] == "struct":
            levels = [shape.fields, shape.structs.setdefault(words[1], [])]
            continue
        parsed = _field(words)
        del levels[depth:]
        levels[-1].append(parsed)
        if parsed.is_struct:
            levels.append(shape.structs.setdefault(parsed.type, []))
            parsed.fields = shape.structs[parsed.type]
    return shape


def _api(block: str) -> Api:
    head, *lines = block.splitlines()
    _, key, name, versions, _, flexible = head.split()
    span = Span.read(versions)
    split = lines.index("response")
    return Api(
        key=int(key),
        name=name,
        first=span.first,
        last=span.last,
        flexible=NEVER if flexible == "never" else int(flexible),
        request=_shape(f"{name}Request", lines[1:split]),
        response=_shape(f"{name}Response", lines[split + 1 :]),
    )


def _apis() -> Iterator[Api]:
    for table in TABLES:
        for block in table.TABLE.strip().split("\n\n"):
            yield _api(block)


APIS: dict[int, Api] = {api.key: api for api in sorted(_apis(), key=lambda api: api.key)}
BY_NAME: dict[str, Api] = {api.name: api for api in APIS.values()}

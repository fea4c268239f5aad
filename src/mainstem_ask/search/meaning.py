"""Which rows of a decoded batch a query means. Words go through the compiled matcher, fields of JSON through the compiled
scanner; only what that finds strange is parsed."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from mainstem.model.errors import InvalidArgument
from mainstem_ask.json_field import Fields, Kind, Path, fields_at
from mainstem_ask.search.language import HEADER, NUMBERED, Both, Compared, Either, Literal, Node, Not, Word
from mainstem_ask.search.matcher import mark_rows
from mainstem_pipeline.serialised import Serialised, is_framed

Marks = np.ndarray[Any, Any]
MISSING = object()
FEW_ROWS = 32  # that are parsed one by one rather than all of the batch looked through
_CONSTANTS = ((Kind.NULL, None), (Kind.TRUE, True), (Kind.FALSE, False))
_EDGE = re.compile(rb"[0-9A-Za-z_\x80-\xff]")
_decode = msgspec.json.decode


def json_of(value: bytes | memoryview | None) -> Any:
    """The value as JSON, or MISSING."""
    if not value:
        return MISSING
    try:
        return _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return MISSING


def at_path(document: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        if isinstance(step, str) and isinstance(document, dict):
            document = document.get(step, MISSING)
        elif isinstance(step, int) and isinstance(document, list) and step < len(document):
            document = document[step]
        else:
            return MISSING
        if document is MISSING:
            return MISSING
    return document


def compares(value: Any, op: str, literal: Literal) -> bool:
    """Whether a field's value stands so to what the query says; of a list any element may."""
    if value is MISSING:
        return False
    if op == "exists":
        return value is not None
    if op == "!=":
        return not compares(value, "=", literal)
    if isinstance(value, list):
        return any(compares(one, op, literal) for one in value)
    if op == "=":
        return _equal(value, literal)
    if op == ":":
        return _holds_word(value, literal)
    number = literal.number
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number is not None and _ordered(value, op, number)
    return isinstance(value, str) and number is None and _ordered(value, op, literal.text)


def _equal(value: Any, literal: Literal) -> bool:
    if isinstance(value, str):
        return value == literal.text
    if literal.quoted:
        return False
    if value is None or isinstance(value, bool):
        return literal.text == {None: "null", True: "true", False: "false"}[value]
    return isinstance(value, int | float) and literal.number is not None and value == literal.number


def _ordered(value: Any, op: str, other: Any) -> bool:
    if op == "<":
        return bool(value < other)
    if op == "<=":
        return bool(value <= other)
    return bool(value > other) if op == ">" else bool(value >= other)


def _holds_word(value: Any, literal: Literal) -> bool:
    if not isinstance(value, str):
        return _equal(value, literal)
    text, wanted = value.encode("utf-8", "replace").lower(), literal.text.encode("utf-8", "replace").lower()
    is_prefix = wanted.endswith(b"*") and not literal.quoted
    wanted = wanted.rstrip(b"*") if is_prefix else wanted
    at = text.find(wanted)
    while at >= 0:
        end = at + len(wanted)
        free_before = not (_EDGE.match(wanted[:1]) and at and _EDGE.match(text[at - 1 : at]))
        free_behind = is_prefix or not (_EDGE.match(wanted[-1:]) and _EDGE.match(text[end : end + 1]))
        if free_before and free_behind:
            return True
        at = text.find(wanted, at + 1)
    return False


class Batch:
    """A decoded batch and what was already found out about it."""

    def __init__(self, rows: pa.RecordBatch, serialised: Serialised | None = None) -> None:
        self.rows, self.count, self._serialised = rows, rows.num_rows, serialised
        self._documents: dict[int, Any] = {}
        self._fields: dict[Path, Fields] = {}

    @functools.cached_property
    def _json(self) -> pa.Array:
        """The values; those that a serialiser of the registry wrote as JSON."""
        values = self.rows.column("value")
        return self._serialised.plain(values) if self._serialised is not None else values

    @functools.cached_property
    def _spans(self) -> tuple[list[int], memoryview]:
        """As they lie: an Arrow scalar for each value would cost more than reading its JSON."""
        _, offsets, data = self._json.buffers()
        ends = np.frombuffer(offsets, np.int32)[: self.count + 1].tolist() if offsets is not None else []
        return ends, memoryview(data) if data is not None else memoryview(b"")

    def document(self, row: int) -> Any:
        """The value as JSON, or MISSING: so is null, which has no bytes."""
        if row not in self._documents:
            ends, data = self._spans
            self._documents[row] = json_of(data[ends[row] : ends[row + 1]] if ends else None)
        return self._documents[row]

    def fields(self, path: Path) -> Fields:
        if path not in self._fields:
            self._fields[path] = fields_at(self._json, path)
        return self._fields[path]

    def framed(self) -> Marks:
        """The rows that a serialiser of the registry may have written: their bytes spell no field."""
        if self._serialised is None or not self._serialised.has_binary:
            return np.zeros(self.count, bool)
        return np.asarray(is_framed(self.rows.column("value")))

    def marked(self, column: str, needle: bytes, *, start: bool, end: bool) -> Marks:
        marks = np.zeros(self.count, np.uint8)
        _, offsets, data = self.rows.column(column).buffers()
        if data is not None and offsets is not None:
            numbers = np.frombuffer(offsets, np.int32)[: self.count + 1]
            mark_rows(np.frombuffer(data, np.uint8), numbers, self.count, needle, start, end, marks)
        return marks.view(bool)


def meant(node: Node, batch: Batch, asked: Marks) -> Marks:
    """Of the rows that are asked for, those that the query means."""
    if isinstance(node, Word):
        return asked & _with_word(node, batch)
    if isinstance(node, Compared):
        return _compared(node, batch, asked)
    if isinstance(node, Not):
        return asked & ~meant(node.part, batch, asked)
    if isinstance(node, Both):
        for part in sorted(node.parts, key=_cost):
            if not asked.any():
                break
            asked = meant(part, batch, asked)
        return asked
    found = np.zeros(batch.count, bool)
    for part in sorted(node.parts, key=_cost):
        found |= meant(part, batch, asked & ~found)
    return found


def _cost(node: Node) -> int:
    """What is cheap is asked first."""
    if isinstance(node, Word):
        return 1
    if isinstance(node, Compared):
        return 0 if node.field in ("topic", "partition", "offset", "origin", "time") else 3
    return 2 if not isinstance(node, Both | Either) or all(_cost(part) < 3 for part in node.parts) else 4


def _with_word(node: Word, batch: Batch) -> Marks:
    start = bool(_EDGE.match(node.folded[:1])) and not node.suffix
    end = bool(_EDGE.match(node.folded[-1:])) and not node.prefix
    found = batch.marked("value", node.folded, start=start, end=end)
    return found | batch.marked("key", node.folded, start=start, end=end)


def _compared(node: Compared, batch: Batch, asked: Marks) -> Marks:
    if not node.field:
        names = [step for step in node.path if isinstance(step, str)]
        if names:
            quoted = b'"' + names[-1].encode().lower() + b'"'
            named = batch.marked("value", quoted, start=False, end=False)
            asked = asked & (named | batch.marked("value", b"\\", start=False, end=False) | batch.framed())
        return _at_path(node, batch, asked)
    if node.field == "topic" or NUMBERED.fullmatch(node.field) or node.field == "origin":
        return asked & _by_value(node, batch)
    value_of = _field(node.field, batch)
    literal = node.literal
    if node.field == "time" and literal.number is None and node.op != "exists":
        literal = Literal(str(_time_ms(literal.text)))
    return _each(asked, lambda row: compares(value_of(row), node.op, literal))


def _at_path(node: Compared, batch: Batch, asked: Marks) -> Marks:
    def parsed(row: int) -> bool:
        return compares(at_path(batch.document(row), node.path), node.op, node.literal)

    if np.count_nonzero(asked) <= FEW_ROWS:
        return _each(asked, parsed)
    fields = batch.fields(node.path)
    kinds = fields.kinds
    found: Marks = _each(asked & ((kinds == Kind.STRANGE) | (kinds == Kind.NESTED)), parsed)
    for kind, value in _CONSTANTS:
        if compares(value, node.op, node.literal):
            found |= asked & (kinds == kind)
    texts = asked & (kinds == Kind.TEXT)
    if texts.any():
        found |= texts & _by_distinct(fields.texts(texts), lambda text: compares(text, node.op, node.literal))
    found |= asked & (kinds == Kind.NUMBER) & _ordered_numbers(fields, node)
    return found


def _ordered_numbers(fields: Fields, node: Compared) -> Marks:
    number, op = node.literal.number, node.op
    is_number: Marks = fields.kinds == Kind.NUMBER
    if op == "exists" or not is_number.any():
        return is_number
    if number is None:
        return is_number if op == "!=" else np.zeros(len(is_number), bool)
    values, number = fields.numbers(), _double(number)
    if op in ("=", ":", "!="):
        return np.asarray(is_number & ((values == number) != (op == "!=")))
    compared = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}[op]
    return np.asarray(compared(values, number))


def _double(number: float) -> float:
    """Exact where it matters: what the scanner calls a number has 15 digits at most."""
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _by_distinct(column: pa.Array, holds: Callable[[str], bool]) -> Marks:
    """Asked once for each distinct text; null holds nothing."""
    coded = column.dictionary_encode()
    answers: Marks = np.asarray([*(holds(text) for text in coded.dictionary.to_pylist()), False], bool)
    return np.take(answers, np.asarray(coded.indices.fill_null(len(answers) - 1)))


def _each(asked: Marks, holds: Callable[[int], bool]) -> Marks:
    found = np.zeros(len(asked), bool)
    for row in np.flatnonzero(asked):
        found[row] = holds(int(row))
    return found


def values_at(batch: Batch, path: Path, rows: Marks) -> Counter[str]:
    """How often each value stands at the path in these rows; texts as they are, others as JSON."""
    fields, asked = batch.fields(path), np.zeros(batch.count, bool)
    asked[rows] = True
    parsed = asked & ((fields.kinds == Kind.STRANGE) | (fields.kinds == Kind.NESTED))
    shown = asked & ~parsed & (fields.kinds != Kind.MISSING)
    found = Counter[str]()
    if shown.any():
        counted = fields.texts(shown).drop_null().value_counts()
        found.update(dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)))
    values = (at_path(batch.document(int(row)), path) for row in np.flatnonzero(parsed))
    found.update(_shown(value) for value in values if value is not MISSING)
    return found


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _by_value(node: Compared, batch: Batch) -> Marks:
    """Asked once for each topic."""
    level = NUMBERED.fullmatch(node.field)

    def holds(text: str) -> bool:
        value: Any = text
        if level is not None:
            levels, at = text.split("/"), int(level[1]) - 1
            value = levels[at] if at < len(levels) else MISSING
        return compares(value, node.op, node.literal)

    return _by_distinct(batch.rows.column("origin" if node.field == "origin" else "canonical_topic"), holds)


def _field(name: str, batch: Batch) -> Callable[[int], Any]:
    rows = batch.rows
    if name.startswith(HEADER):
        wanted, column = name[len(HEADER) :], rows.column("headers")

        def header(row: int) -> Any:
            for one in column[row].as_py() or ():
                if one["key"] == wanted:
                    return None if one["value"] is None else one["value"].decode("utf-8", "replace")
            return MISSING

        return header
    if name == "key":
        keys = rows.column("key")
        return lambda row: MISSING if (found := keys[row].as_py()) is None else found.decode("utf-8", "surrogateescape")
    if name == "size":
        values = rows.column("value")
        return lambda row: len(values[row].as_py() or b"")
    if name == "time":
        times = rows.column("timestamp").cast(pa.int64())
        return lambda row: times[row].as_py() // 1000
    numbers = rows.column(name)
    return lambda row: numbers[row].as_py()


def _time_ms(text: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise InvalidArgument(f"time is compared with {text!r}", fix='time>="2026-01-31T12:00:00Z", or ms') from None

"""Values into columns: JSON text, or what the registry makes of serialised values, as Arrow arrays of a shape.

Most values are just what the shape says. They are read many at a time by Arrow's JSON reader, which takes them all or none;
of those it does not take, halves are tried, down to SLOW_ROWS, which are read one by one. Both ways say the same (a
property test holds them together). First each value is looked at by itself: two documents in one value, or one in two,
would shift the rows.

A decoder that may learn grows the shape instead of putting what is new into the rest; what it grew to is known at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json as pj

from mainstem_pipeline.lake.arrays import projected
from mainstem_pipeline.lake.shapes import Fields, Learner, arrow_of, fitted
from mainstem_pipeline.serialised import Serialised

SLOW_ROWS = 512
NOTHING = b"{}"
NULL, NO_JSON, NO_OBJECT = "the value is null", "the value is not JSON", "the value is not a JSON object"
NO_SCHEMA = "no schema of the registry fits the value"


class _Object(msgspec.Struct):
    """Any JSON object; what is in it is passed over."""


_is_object = msgspec.json.Decoder(_Object).decode


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of values: a struct of their fields, what has no column (JSON), and why there are no fields."""

    fields: pa.StructArray
    rest: pa.Array
    reasons: pa.Array


class Decoder:
    """Of one shape, for one task. `serialised`: None where no value is decoded by the registry."""

    def __init__(self, shape: Fields, serialised: Serialised | None, *, learns: bool) -> None:
        self._serialised, self._learns = serialised, learns
        self._shape = shape
        self._learner = Learner(shape)
        self._set_types()

    @property
    def grown(self) -> Fields | None:
        """The shape that the values need, if it is more than what was given."""
        return self._learner.fields if self._learner.has_grown else None

    def _set_types(self) -> None:
        self._by_key = arrow_of(self._shape, by_key=True)
        self._by_column = arrow_of(self._shape, by_key=False)
        self._parse = pj.ParseOptions(explicit_schema=pa.schema(list(self._by_key)), unexpected_field_behavior="error")

    def columns(self, values: pa.Array) -> Columns | None:
        """None once the shape has grown: then the decoder only learns."""
        texts, reasons, rests = self._texts(values)
        parts: list[pa.StructArray] = []
        self._read(texts, 0, len(texts), parts, reasons, rests)
        if self._learner.has_grown:
            return None
        fields = pa.concat_arrays(parts) if parts else pa.array([], self._by_column)
        return Columns(fields, pa.array(rests, pa.string()), pa.array(reasons, pa.string()))

    def _texts(self, values: pa.Array) -> tuple[list[bytes], list[str | None], list[str | None]]:
        """Each value as the text of an object; what is none has a reason, and may have a rest."""
        texts = values.to_pylist()
        reasons: list[str | None] = [None] * len(texts)
        rests: list[str | None] = [None] * len(texts)
        for at, value in enumerate(texts):
            if value is None:
                texts[at], reasons[at] = NOTHING, NULL
                continue
            if value[:1] == b"\0" and self._serialised is not None:
                text = self._serialised.text(value)
                if text is None:
                    texts[at], reasons[at] = NOTHING, NO_SCHEMA
                    continue
                value = texts[at] = text.encode()
            try:
                _is_object(value)
            except (msgspec.DecodeError, RecursionError):
                texts[at], (reasons[at], rests[at]) = NOTHING, _no_object(value)
        return texts, reasons, rests

    def _read(
        self,
        texts: list[bytes],
        start: int,
        end: int,
        parts: list[pa.StructArray],
        reasons: list[str | None],
        rests: list[str | None],
    ) -> None:
        if start == end:
            return
        found = self._at_once(texts[start:end])
        if found is not None:
            parts.append(found)
        elif end - start > SLOW_ROWS:
            middle = (start + end) // 2
            self._read(texts, start, middle, parts, reasons, rests)
            self._read(texts, middle, end, parts, reasons, rests)
        else:
            parts.append(self._one_by_one(texts, start, end, reasons, rests))

    def _at_once(self, texts: Sequence[bytes]) -> pa.StructArray | None:
        """None if some value is not just what the shape says."""
        if not self._by_key.num_fields:
            return None
        joined = b"\n".join(texts)
        if joined.count(b"\n") >= len(texts):  # line breaks between tokens: text itself has none
            joined = b"\n".join(one.replace(b"\n", b" ") for one in texts)
        options = pj.ReadOptions(use_threads=False, block_size=len(joined) + 1)
        try:
            joined.decode()
            read = pj.read_json(pa.py_buffer(joined), read_options=options, parse_options=self._parse)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return None
        if read.num_rows != len(texts):
            return None
        whole = read.combine_chunks().to_batches()[0]
        children = [projected(whole.column(at), one.type, None) for at, one in enumerate(self._by_column)]
        return pa.StructArray.from_arrays(children, fields=list(self._by_column))

    def _one_by_one(
        self, texts: list[bytes], start: int, end: int, reasons: list[str | None], rests: list[str | None]
    ) -> pa.StructArray:
        values: list[dict[str, Any]] = []
        for at in range(start, end):
            try:
                values.append(msgspec.json.decode(texts[at]))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                reasons[at] = NO_JSON
                values.append({})
        if self._learns:
            self._learn(values)
        rows = []
        for at, value in enumerate(values, start):
            row, rest = fitted(self._shape, value)
            rows.append(row)
            if rest:
                rests[at] = msgspec.json.encode(rest).decode()
        return pa.array(rows, self._by_column)

    def _learn(self, values: Sequence[dict[str, Any]]) -> None:
        for one in values:
            self._learner.learn(one)
        if self._learner.has_grown:  # what follows is read by it, quickly
            self._shape = self._learner.fields
            self._set_types()


def _no_object(value: bytes) -> tuple[str, str | None]:
    """(why there are no fields, the value as the rest)"""
    try:
        found = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NO_JSON, None
    return NO_OBJECT, msgspec.json.encode({"value": found}).decode()

"""A view's condition on key and headers, over whole Arrow batches. See mainstem.model.condition for its grammar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.codec.arrow_rows import record_batch
from mainstem.model.condition import Condition, Term

KEY_TYPE = pa.binary()
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def filtered(
    taken: Mapping[int, tuple[Any, ...]], rows: int, schema: pa.Schema, condition: Condition
) -> pa.RecordBatch:
    """The decoder's rows for which the condition holds, in the columns of the schema."""
    extra = [
        pa.field(name, kind)
        for name, kind in (("key", KEY_TYPE), ("headers", HEADERS_TYPE))
        if name not in schema.names
    ]
    batch = record_batch(taken, rows, pa.schema([*schema, *extra]))
    keep = np.ones(rows, dtype=bool)
    for term in condition.terms:
        keep &= holds(term, batch.column("key"), batch.column("headers"))
    kept = batch.filter(pa.array(keep))
    return pa.RecordBatch.from_arrays([kept.column(name) for name in schema.names], schema=schema)


def holds(term: Term, keys: pa.Array, headers: pa.Array) -> np.ndarray:
    if term.header is None:
        return _compare(term, keys, np.asarray(keys.is_valid()))
    # Of duplicates the first counts: find, for each row, the first header of that name.
    flat = headers.flatten()
    parents = np.asarray(headers.value_parent_indices())
    named = np.flatnonzero(np.asarray(pc.equal(flat.field(0), term.header.decode("utf-8", "replace"))))
    rows, first = np.unique(parents[named], return_index=True)
    answers = np.full(len(headers), term.op == "!=", dtype=bool)
    if len(rows):
        values = flat.field(1).take(pa.array(named[first]))
        answers[rows] = _compare(term, values, np.ones(len(rows), dtype=bool))
    return answers


def _compare(term: Term, values: pa.Array, found: np.ndarray) -> np.ndarray:
    if term.op == "exists":
        return found
    if term.op == "^=":
        answer = pc.starts_with(values, term.text)
    else:
        answer = pc.equal(values, pa.scalar(term.text, values.type))
    equal = np.asarray(pc.fill_null(answer, False))
    return ~equal if term.op == "!=" else equal

"""One field of the JSON in a whole column of values, found by compiled code without the GIL: a gigabyte or more a second.

Nothing is parsed into objects. Each row is either decided (its field is missing, null, true, false, a number or a text, and
stands at these bytes) or strange, and then the caller asks a whole parser: see _json_scan.h for what is strange.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem_ask._json_field import find_fields, gather, numbers, take_texts

Path = tuple[str | int, ...]
PATH_STEPS_MAX = 16


class Kind(IntEnum):
    STRANGE = 0
    MISSING = 1  # or the value is empty
    NULL = 2
    TRUE = 3
    FALSE = 4
    NUMBER = 5  # spelled as everybody would
    TEXT = 6  # without escapes
    NESTED = 7  # an object or a list


@dataclass(frozen=True, slots=True)
class Fields:
    """Of each row what stands at the path."""

    kinds: np.ndarray[Any, Any]
    _data: np.ndarray[Any, Any]
    _starts: np.ndarray[Any, Any]
    _sizes: np.ndarray[Any, Any]

    def numbers(self) -> np.ndarray[Any, Any]:
        """NaN where it is none."""
        made = np.full(len(self.kinds), np.nan)
        numbers(self._data, self.kinds, self._starts, self._sizes, made)
        return made

    def texts(self, kept: np.ndarray[Any, Any]) -> pa.Array:
        """The bytes of the kept rows as text; null for the others."""
        rows = len(self.kinds)
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(np.where(kept, self._sizes, 0), out=offsets[1:])
        made = np.empty(int(offsets[rows]), np.uint8)
        gather(self._data, self._starts, offsets, made)
        valid = np.packbits(kept, bitorder="little")
        buffers = [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(made)]
        return pa.Array.from_buffers(pa.string(), rows, buffers)


def fields_at(values: pa.Array, path: Path) -> Fields:
    """`values` is a binary or string column that begins at the start of its buffers, as decoded ones do."""
    rows = len(values)
    held, ends = _laid_out(values)
    kinds, starts, sizes = (np.zeros(rows, kind) for kind in (np.uint8, np.int32, np.int32))
    if rows and len(ends) and len(path) <= PATH_STEPS_MAX:
        find_fields(held, ends, rows, _spelled(path), kinds, starts, sizes)
    return Fields(kinds, held, starts, sizes)


def texts_at(values: pa.Array, path: Path) -> tuple[pa.Array, np.ndarray[Any, Any] | None]:
    """The field of each value as text, null where it is missing or null; and which rows are left to a whole parser, because
    they are strange or nested (None: no row is). One pass over the values."""
    rows = len(values)
    held, ends = _laid_out(values)
    if not rows or not len(ends) or len(path) > PATH_STEPS_MAX:
        return pa.nulls(rows, pa.string()), np.ones(rows, bool) if rows else None
    kinds, places = np.zeros(rows, np.uint8), np.zeros(rows + 1, np.int32)
    valid, made = np.zeros((rows + 7) // 8, np.uint8), np.empty(len(held), np.uint8)
    left = take_texts(held, ends, rows, _spelled(path), kinds, places, valid, made)
    buffers = [pa.py_buffer(one) for one in (valid, places, made[: places[rows]])]
    found = pa.Array.from_buffers(pa.string(), rows, buffers)
    return found, (kinds == Kind.STRANGE) | (kinds == Kind.NESTED) if left else None


def _spelled(path: Path) -> tuple[bytes | int, ...]:
    return tuple(step.encode("utf-8", "surrogatepass") if isinstance(step, str) else step for step in path)


def _laid_out(values: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Bytes and where each value ends."""
    if values.offset:
        values = pa.array(values.to_pylist(), values.type)
    _, offsets, data = values.buffers()
    held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return held, np.frombuffer(offsets, np.int32)[: len(values) + 1] if offsets is not None else np.zeros(0, np.int32)

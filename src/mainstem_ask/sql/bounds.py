"""What a filter that DuckDB pushes down says of a record's place, so that what it cannot mean is never read.

DuckDB hands over an Arrow expression, whose parts cannot be looked at. But Arrow can be asked whether it may hold for any
row of which something is known (that is how it skips files): so a bound is found by asking, in some sixty steps. Whatever is
not understood by Arrow narrows nothing; every row is still checked against the whole filter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from mainstem_ask.sql.columns import SCANNED, TIME

OFFSET_MAX = (1 << 63) - 1
TIME_US_MAX = 253_402_300_799_999_999  # the last of the year 9999
_EQUAL = re.compile(r'\((topic|canonical_topic) == "((?:[^"\\]|\\.)*)"\)')


@dataclass(frozen=True, slots=True)
class Bounds:
    first: int = 0  # offsets
    end: int = OFFSET_MAX
    time_us: int = 0  # nothing older
    topic: str | None = None  # only this one, as Kafka spells it
    canonical: str | None = None  # or as MQTT does


def bounds_of(condition: Any) -> Bounds:
    if condition is None:
        return Bounds()
    offset, time = ds.field("offset"), ds.field("timestamp")
    first = _least(condition, lambda at: offset < pa.scalar(at, pa.int64()), OFFSET_MAX)
    last = _most(condition, lambda at: offset > pa.scalar(at, pa.int64()), OFFSET_MAX)
    time_us = _least(condition, lambda at: time < pa.scalar(at, TIME), TIME_US_MAX)
    named = {name: _named(condition, name) for name in ("topic", "canonical_topic")}
    return Bounds(first, min(last + 1, OFFSET_MAX), time_us, named["topic"], named["canonical_topic"])


def possible(condition: Any, known: Sequence[Any]) -> list[int]:
    """The places, in `known`, of those guarantees under which the condition may hold for a row."""
    if condition is None:
        return list(range(len(known)))
    form, local = ds.ParquetFileFormat(), fs.LocalFileSystem()
    fragments = [form.make_fragment(str(at), local, partition_expression=one) for at, one in enumerate(known)]
    asked = ds.FileSystemDataset(fragments, SCANNED, form, local)
    return [int(fragment.path) for fragment in asked.get_fragments(condition)]


def _may_hold(condition: Any, known: Any) -> bool:
    return bool(possible(condition, [known]))


def _least(condition: Any, below: Any, most: int) -> int:
    """The largest number below which the condition holds for nothing."""
    low, high = 0, most
    if _may_hold(condition, below(1)):
        return 0
    while low + 1 < high:
        middle = (low + high) // 2
        if _may_hold(condition, below(middle)):
            high = middle
        else:
            low = middle
    return low


def _most(condition: Any, above: Any, most: int) -> int:
    """The smallest number above which the condition holds for nothing."""
    if _may_hold(condition, above(most - 1)):
        return most
    low, high = -1, most - 1
    while low + 1 < high:
        middle = (low + high) // 2
        if _may_hold(condition, above(middle)):
            low = middle
        else:
            high = middle
    return high


def _named(condition: Any, column: str) -> str | None:
    """The one topic that the condition means. What the text suggests is believed only if Arrow rules out all others."""
    for name, text in _EQUAL.findall(str(condition)):
        value = re.sub(r"\\(.)", r"\1", text)
        if name != column:
            continue
        field = ds.field(column)
        if not possible(condition, [field < value, field > value, field.is_null()]):
            return value
    return None

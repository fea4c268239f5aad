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
    time_last_us: int = TIME_US_MAX  # nothing newer
    topic: str | None = None  # only this one, as Kafka spells it
    canonical: str | None = None  # or as MQTT does
    asked: Asked | None = None

    def possible(self, known: Sequence[Any]) -> list[int]:
        """The places, in `known`, of those guarantees under which the condition may hold for a row."""
        return list(range(len(known))) if self.asked is None else self.asked.possible(known)


@dataclass(frozen=True, slots=True)
class Asked:
    """The filter, over these columns."""

    condition: Any
    schema: pa.Schema

    def possible(self, known: Sequence[Any]) -> list[int]:
        form, local = ds.ParquetFileFormat(), fs.LocalFileSystem()
        fragments = [form.make_fragment(str(at), local, partition_expression=one) for at, one in enumerate(known)]
        asked = ds.FileSystemDataset(fragments, self.schema, form, local)
        return [int(fragment.path) for fragment in asked.get_fragments(self.condition)]

    def may_hold(self, known: Any) -> bool:
        return bool(self.possible([known]))


def bounds_of(condition: Any, schema: pa.Schema = SCANNED) -> Bounds:
    if condition is None:
        return Bounds()
    asked = Asked(condition, schema)
    offset, time = ds.field("offset"), ds.field("timestamp")
    first = _least(asked, lambda at: offset < pa.scalar(at, pa.int64()), OFFSET_MAX)
    last = _most(asked, lambda at: offset > pa.scalar(at, pa.int64()), OFFSET_MAX)
    time_us = _least(asked, lambda at: time < pa.scalar(at, TIME), TIME_US_MAX)
    time_last_us = _most(asked, lambda at: time > pa.scalar(at, TIME), TIME_US_MAX)
    named = {name: _named(asked, name) for name in ("topic", "canonical_topic")}
    end = min(last + 1, OFFSET_MAX)
    return Bounds(first, end, time_us, time_last_us, named["topic"], named["canonical_topic"], asked)


def _least(asked: Asked, below: Any, most: int) -> int:
    """The largest number below which the condition holds for nothing."""
    low, high = 0, most
    if asked.may_hold(below(1)):
        return 0
    while low + 1 < high:
        middle = (low + high) // 2
        if asked.may_hold(below(middle)):
            high = middle
        else:
            low = middle
    return low


def _most(asked: Asked, above: Any, most: int) -> int:
    """The smallest number above which the condition holds for nothing."""
    if asked.may_hold(above(most - 1)):
        return most
    low, high = -1, most - 1
    while low + 1 < high:
        middle = (low + high) // 2
        if asked.may_hold(above(middle)):
            low = middle
        else:
            high = middle
    return high


def _named(asked: Asked, column: str) -> str | None:
    """The one topic that the condition means. What the text suggests is believed only if Arrow rules out all others."""
    for name, text in _EQUAL.findall(str(asked.condition)):
        value = re.sub(r"\\(.)", r"\1", text)
        if name != column:
            continue
        field = ds.field(column)
        if not asked.possible([field < value, field > value, field.is_null()]):
            return value
    return None

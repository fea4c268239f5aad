"""Filters that Spark pushes down narrow what is planned, and those on the key what tasks hand over. All are handed back:
Spark still checks every row. (It pushes no filter on headers: an array's elements are no column to it.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from mainstem_pipeline.options import Clip, ReadOptions


def pushed(options: ReadOptions, filters: Sequence[Filter]) -> tuple[ReadOptions, list[Filter]]:
    """The options with what the filters say of topic, partition, offset, time and key, and those Spark must still apply."""
    clip = options.clip
    for one in filters:
        clip = _narrowed(clip, one)
    return replace(options, clip=clip), list(filters)


def _narrowed(clip: Clip, one: Filter) -> Clip:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in ("topic", "partition", "offset", "timestamp", "key"):
        return clip
    column = attribute[0]
    if column == "timestamp":
        return _times(clip, one)
    if column == "offset":
        return _offsets(clip, one)
    if isinstance(one, EqualTo):
        values = {one.value}
    elif isinstance(one, In):
        values = set(one.value)
    else:
        return clip
    if column == "key":
        keys = frozenset(bytes(value) for value in values if isinstance(value, bytes | bytearray))
        return replace(clip, keys=keys if clip.keys is None else clip.keys & keys)
    if column == "topic":
        known = frozenset(str(value) for value in values)
        return replace(clip, topics=known if clip.topics is None else clip.topics & known)
    numbers = frozenset(int(value) for value in values if value is not None)
    return replace(clip, partitions=numbers if clip.partitions is None else clip.partitions & numbers)


def _times(clip: Clip, one: Filter) -> Clip:
    """Only from when on: times may run in any order, so the first record that is late enough has none before it, but what
    comes after the last such record cannot be known."""
    if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual) and isinstance(one.value, datetime):
        first = one.value if one.value.tzinfo is not None else one.value.replace(tzinfo=UTC)
        time_ms = (first - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        return replace(clip, time_ms=max(clip.time_ms, time_ms))
    return clip


def _offsets(clip: Clip, one: Filter) -> Clip:
    if isinstance(one, EqualTo) and one.value is not None:
        return replace(clip, first=max(clip.first, one.value), end=min(clip.end, one.value + 1))
    if isinstance(one, GreaterThanOrEqual):
        return replace(clip, first=max(clip.first, one.value))
    if isinstance(one, GreaterThan):
        return replace(clip, first=max(clip.first, one.value + 1))
    if isinstance(one, LessThan):
        return replace(clip, end=min(clip.end, one.value))
    if isinstance(one, LessThanOrEqual):
        return replace(clip, end=min(clip.end, one.value + 1))
    return clip

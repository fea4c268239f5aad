"""How a decoded table is laid out, in words: `day(_timestamp)`, `bucket(16, device)`, `device`; `_timestamp desc`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import ConfigError, InvalidArgument

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

_TRANSFORM = re.compile(r"(?:(day|hour|month|year)\(([\w.]+)\)|(bucket|truncate)\((\d+), *([\w.]+)\)|([\w.]+))")
_ORDER = re.compile(r"(\w+)(?: +(asc|desc))?", re.IGNORECASE)


def check_layout(partition: Sequence[str], sort: Sequence[str]) -> None:
    for one in partition:
        if not _TRANSFORM.fullmatch(one):
            raise InvalidArgument(
                f"--partition {one!r}", fix="day(_timestamp), bucket(16, device), truncate(4, device), device"
            )
    for one in sort:
        if not _ORDER.fullmatch(one):
            raise InvalidArgument(f"--sort {one!r}", fix="device, or '_timestamp desc'")


def lay_out(table: Table, partition: Sequence[str], sort: Sequence[str]) -> None:
    """Partition and order of a table that has no rows yet. Its columns are there."""
    schema = table.schema()
    with table.transaction() as transaction:
        if partition:
            with transaction.update_spec() as spec:
                for text in partition:
                    name, transform, label = _transform(text)
                    _check_column(schema, name, f"--partition {text}")
                    spec.add_field(name, transform, label)
        if sort:
            from pyiceberg.table.sorting import NullOrder
            from pyiceberg.transforms import IdentityTransform

            with transaction.update_sort_order() as order:
                for text in sort:
                    match = _ORDER.fullmatch(text)
                    assert match is not None
                    _check_column(schema, match[1], f"--sort {text}")
                    falls = (match[2] or "").lower() == "desc"
                    (order.desc if falls else order.asc)(match[1], IdentityTransform(), NullOrder.NULLS_LAST)


def _check_column(schema: Schema, name: str, asked: str) -> None:
    try:
        schema.find_field(name)
    except ValueError:
        raise ConfigError(
            f"{asked}: there is no column {name} in the first records", fix="name one of the data, or _timestamp"
        ) from None


def _transform(text: str) -> tuple[str, Any, str]:
    """(column, Iceberg's transform, the partition field's name)"""
    from pyiceberg import transforms

    match = _TRANSFORM.fullmatch(text)
    assert match is not None
    time, timed, cut, width, cut_of, plain = match.groups()
    name = timed or cut_of or plain
    label = name.replace(".", "_")
    if plain:
        return name, transforms.IdentityTransform(), f"{label}_part"
    if time:
        times: dict[str, Any] = {
            "day": transforms.DayTransform,
            "hour": transforms.HourTransform,
            "month": transforms.MonthTransform,
            "year": transforms.YearTransform,
        }
        return name, times[time](), f"{label}_{time}"
    cuts: dict[str, Any] = {"bucket": transforms.BucketTransform, "truncate": transforms.TruncateTransform}
    return name, cuts[cut](int(width)), f"{label}_{cut}"

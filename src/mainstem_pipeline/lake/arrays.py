"""Arrow arrays under another type of the same structure: other names, field ids, order of fields, fields that are new.

pyiceberg's own projection makes an empty list of a list of structs that is null, wherever it lies. Nothing is copied here
but what must be: a number that became wider, lists whose offsets become longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa

FIELD_ID = b"PARQUET:field_id"
Known = Callable[[pa.Field], str] | None  # None: by its place, where both have the same fields in the same order


def by_id(field: pa.Field) -> str:
    """What a column is known by in files: Iceberg's id."""
    found: bytes = (field.metadata or {}).get(FIELD_ID, b"")
    return found.decode()


def by_name(field: pa.Field) -> str:
    return str(field.name)


def small(kind: pa.DataType) -> pa.DataType:
    """The type with offsets of 32 bits, as Parquet's readers and JSON's make them; names and ids inside stay."""
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(small(one.type)) for one in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(small(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(small(kind.key_type)), kind.item_field.with_type(small(kind.item_type)))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def projected(array: pa.Array, wanted: pa.DataType, known: Known) -> pa.Array:
    """The same values as `wanted` says; fields of structs are found by what they are `known` by, missing ones are null."""
    if known is None and array.type == wanted:
        return array
    if pa.types.is_struct(wanted):
        children = [
            _child(array, place, one.type, known)
            for place, one in zip(_places(array.type, wanted, known), wanted, strict=True)
        ]
        mask = array.is_null() if array.null_count else None
        if not children:
            return pa.array([None if is_null else {} for is_null in array.is_null().to_pylist()], wanted)
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
    if pa.types.is_list(wanted) or pa.types.is_large_list(wanted):
        return _list(array, wanted, known)
    if pa.types.is_map(wanted):
        return _map(array, wanted, known)
    if pa.types.is_dictionary(array.type) and not pa.types.is_dictionary(wanted):
        array = array.dictionary_decode()
    if array.type == wanted:
        return array
    return array.cast(wanted, safe=not pa.types.is_timestamp(wanted))  # another engine's nanoseconds


def _places(have: pa.StructType, wanted: pa.StructType, known: Known) -> list[int | None]:
    """Where each wanted field is."""
    if known is None:
        return list(range(wanted.num_fields))
    at = {known(have.field(number)): number for number in range(have.num_fields)}
    return [at.get(known(one)) for one in wanted]


def _child(array: pa.StructArray, at: int | None, wanted: pa.DataType, known: Known) -> pa.Array:
    return projected(array.field(at), wanted, known) if at is not None else pa.nulls(len(array), wanted)


def _list(array: pa.Array, wanted: pa.DataType, known: Known) -> pa.Array:
    is_large = pa.types.is_large_list(wanted)
    made = pa.LargeListArray if is_large else pa.ListArray
    offsets = array.offsets.cast(pa.int64() if is_large else pa.int32())
    values = projected(array.values, wanted.value_type, known)
    if not array.null_count:
        return made.from_arrays(offsets, values, type=wanted)
    if array.offset:  # from_arrays takes no mask beside offsets that are a slice
        offsets = pa.array(offsets.to_numpy(), offsets.type)
    return made.from_arrays(offsets, values, type=wanted, mask=array.is_null())


def _map(array: pa.MapArray, wanted: pa.MapType, known: Known) -> pa.Array:
    """Maps are somebody else's: our own tables have none."""
    keys = projected(array.keys, wanted.key_type, known)
    items = projected(array.items, wanted.item_type, known)
    mask = array.is_null() if array.null_count else None
    return pa.MapArray.from_arrays(pa.array(array.offsets.to_numpy(), pa.int32()), keys, items, type=wanted, mask=mask)


def projected_batch(
    batch: pa.RecordBatch,
    wanted: pa.Schema,
    known: Callable[[pa.Field], str],
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> pa.RecordBatch:
    """A batch's columns as another schema has them; one that it has none of is null, or what `defaults` has for it."""
    places = {known(one): at for at, one in enumerate(batch.schema)}
    columns = [
        projected(batch.column(places[known(one)]), one.type, known)
        if known(one) in places
        else pa.repeat(pa.scalar(defaults.get(known(one)), one.type), batch.num_rows)
        for one in wanted
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)

"""Iceberg's format 3, as far as a catalog has to know it: others' snapshots, row ids and deletion vectors are committed.

pyiceberg (0.12) reads tables of format 3 and commits none. What it lacks for commits that other engines made:

| | pyiceberg | here |
|---|---|---|
| metadata as JSON | refused | written; `next-row-id` is always in it |
| raising a table to format 3 | refused | done; row ids start at 0 |
| a snapshot's `added-rows` | may be missing, and the next row id is lost with it | required |
| a snapshot behind the table's sequence number or next row id | refused for good, or unnoticed | 409: it lost a race |
| a snapshot or a table that is encrypted | its keys are dropped | refused |
| defaults of columns | dropped when a table is created | kept |

Data files, delete files and manifests are the engine's own. Our own commits are of format 2 (`commits.check_writable`).
"""

from __future__ import annotations

import json
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.serializers import Compressor
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    UpgradeFormatVersionUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
)
from pyiceberg.typedef import IcebergBaseModel, Identifier
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

FORMAT_MAX = 3
LINEAGE = 3  # the first format whose rows have ids


def metadata_json(metadata: TableMetadata) -> str:
    if metadata.format_version < LINEAGE:
        return metadata.model_dump_json()
    whole = metadata.model_copy(update={"next_row_id": getattr(metadata, "next_row_id", None) or 0})
    return IcebergBaseModel.model_dump_json(whole)  # pyiceberg's own class for format 3 refuses


def write_metadata(metadata: TableMetadata, io: FileIO, location: str) -> None:
    packed = Compressor.get_compressor(location).bytes_compressor()(metadata_json(metadata).encode())
    with io.new_output(location).create() as stream:
        stream.write(packed)


class LakeCatalog(SqlCatalog):
    """pyiceberg's SQL catalog, that commits tables of format 3 as well. Chosen by the property `py-catalog-impl`."""

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        write_metadata(metadata, io, metadata_path)

    @staticmethod
    def identifier_to_database_and_table(
        identifier: str | Identifier,
        err: type[ValueError] | type[NoSuchTableError] | type[NoSuchNamespaceError] = ValueError,
    ) -> tuple[str, str]:
        """A namespace within another is one name with dots, as this catalog stores it; pyiceberg creates no tables there."""
        *space, name = SqlCatalog.identifier_to_tuple(identifier)
        if not space:
            raise err(f"{name!r} is the name of a table without a namespace")
        return ".".join(space), name

    def _update_and_stage_table(
        self, current_table: Table | None, table_identifier: Any, requirements: Any, updates: tuple[Any, ...]
    ) -> StagedTable:
        return super()._update_and_stage_table(current_table, table_identifier, requirements, known_updates(updates))


# -- updates that pyiceberg applies otherwise; its dispatch finds these by their class


class RaiseFormat(UpgradeFormatVersionUpdate):
    """`upgrade-format-version`, to 3 as well."""


class AddNewestSnapshot(AddSnapshotUpdate):
    """`add-snapshot`, of a snapshot that must be newer than all that the table has seen."""


def known_updates(updates: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_known(one) for one in updates)


def _known(update: Any) -> Any:
    if isinstance(update, UpgradeFormatVersionUpdate):
        return RaiseFormat.model_validate(update.model_dump())
    if isinstance(update, AddSnapshotUpdate):
        return AddNewestSnapshot.model_construct(action=update.action, snapshot=update.snapshot)
    return update


@_apply_table_update.register(RaiseFormat)
def _raise_format(update: RaiseFormat, base: TableMetadata, context: _TableMetadataUpdateContext) -> TableMetadata:
    known = _apply_table_update.dispatch(UpgradeFormatVersionUpdate)
    if update.format_version != LINEAGE or base.format_version >= LINEAGE:
        return known(update, base, context)
    context.add_update(update)
    raised = base.model_copy(update={"format_version": update.format_version, "next_row_id": 0})
    return TableMetadataUtil._construct_without_validation(raised)


@_apply_table_update.register(AddNewestSnapshot)
def _add_newest(update: AddNewestSnapshot, base: TableMetadata, context: _TableMetadataUpdateContext) -> TableMetadata:
    snapshot = update.snapshot
    last = getattr(base, "last_sequence_number", 0)
    if base.format_version > 1 and snapshot.parent_snapshot_id is not None and (snapshot.sequence_number or 0) <= last:
        raise CommitFailedException(
            f"Cannot add snapshot with sequence number {snapshot.sequence_number} older than last sequence number {last}"
        )
    if base.format_version >= LINEAGE:
        _check_row_ids(snapshot, getattr(base, "next_row_id", None) or 0)
    return _apply_table_update.dispatch(AddSnapshotUpdate)(update, base, context)


def _check_row_ids(snapshot: Any, next_row_id: int) -> None:
    if snapshot.first_row_id is None:
        raise ValueError("Cannot add a snapshot: first-row-id is null")
    if snapshot.added_rows is None or snapshot.added_rows < 0:
        raise ValueError(f"Cannot add a snapshot: added-rows is {snapshot.added_rows}, and must be 0 or more")
    if snapshot.first_row_id < next_row_id:
        raise CommitFailedException(
            f"Cannot add a snapshot, first-row-id is behind table next-row-id: {snapshot.first_row_id} < {next_row_id}"
        )


def check_kept(update: Any) -> None:
    """ValueError for an update, as it was sent, with something that pyiceberg's model would drop."""
    snapshot = update.get("snapshot") if isinstance(update, dict) else None
    if isinstance(snapshot, dict) and snapshot.get("key-id") is not None:
        raise ValueError("the snapshot is encrypted (key-id): encrypted tables cannot be committed here")


def check_whole(io: FileIO, location: str) -> None:
    """ValueError for a metadata file with something that pyiceberg's model drops: the next commit would lose it."""
    with Compressor.get_compressor(location).stream_decompressor(io.new_input(location).open()) as stream:
        told = json.load(stream)
    if told.get("encryption-keys"):
        raise ValueError(f"{location} is of an encrypted table (encryption-keys): they cannot be committed here")


# -- defaults of columns


def with_defaults(fresh: Schema, asked: Schema) -> Schema:
    """The schema with new ids, and the defaults that its columns were asked with."""
    return Schema(
        *_fields(fresh.fields, asked.fields),
        schema_id=fresh.schema_id,
        identifier_field_ids=fresh.identifier_field_ids,
    )


def _fields(fresh: tuple[NestedField, ...], asked: tuple[NestedField, ...]) -> list[NestedField]:
    return [
        NestedField(
            field_id=one.field_id,
            name=one.name,
            field_type=_type(one.field_type, told.field_type),
            required=one.required,
            doc=one.doc,
            initial_default=told.initial_default,
            write_default=told.write_default,
        )
        for one, told in zip(fresh, asked, strict=True)
    ]


def _type(fresh: IcebergType, asked: IcebergType) -> IcebergType:
    if isinstance(fresh, StructType) and isinstance(asked, StructType):
        return StructType(*_fields(fresh.fields, asked.fields))
    if isinstance(fresh, ListType) and isinstance(asked, ListType):
        return fresh.model_copy(update={"element_type": _type(fresh.element_type, asked.element_type)})
    if isinstance(fresh, MapType) and isinstance(asked, MapType):
        key, value = _type(fresh.key_type, asked.key_type), _type(fresh.value_type, asked.value_type)
        return fresh.model_copy(update={"key_type": key, "value_type": value})
    return fresh

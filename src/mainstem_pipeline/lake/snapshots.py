"""Snapshots that pyiceberg does not make: other files with the same rows (`replace`), and rows deleted by position.

A position delete file lists rows of data files (file_path, pos), sorted so; its entry stands in a manifest of deletes.
Imported where it is needed: pyiceberg takes a while.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation, Summary, UpdateMetrics
from pyiceberg.table.update.snapshot import _OverwriteFiles

if TYPE_CHECKING:
    from pyiceberg.table import Table

PATH_ID, POSITION_ID = 2147483546, 2147483545  # Iceberg's, of the two columns of a position delete file
TOTALS = (
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
    ("total-files-size", "added-files-size", "removed-files-size"),
)


class DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class ChangedFiles(_OverwriteFiles):
    """A snapshot that takes files out of the table and puts others in, delete files among them.

    `delete_data_file`, `append_data_file` as pyiceberg's; `append_deletes`, `drop_deletes` for delete files.
    """

    def __init__(self, transaction: Any, properties: dict[str, str], *, is_replace: bool) -> None:
        super().__init__(
            operation=Operation.OVERWRITE,
            transaction=transaction,
            io=transaction._table.io,
            branch="main",
            snapshot_properties=properties,
        )
        self._is_replace = is_replace  # the same rows in other files
        self._added_deletes: list[DataFile] = []
        self._useless: set[str] = set()
        self._dropped: list[DataFile] = []

    def append_deletes(self, files: Sequence[DataFile]) -> None:
        self._added_deletes += files

    def drop_deletes(self, files: Sequence[DataFile]) -> None:
        """Delete files that concern no data file any more; they go where a whole manifest of them can go."""
        self._useless = {one.file_path for one in files}

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        self._dropped = []
        kept = [one for one in manifests if not self._goes(one)]
        by_spec: dict[int, list[DataFile]] = {}
        for one in self._added_deletes:
            by_spec.setdefault(one.spec_id, []).append(one)
        return kept + [self._deletes_manifest(spec, files) for spec, files in by_spec.items()]

    def _goes(self, manifest: ManifestFile) -> bool:
        if not self._useless or manifest.content != ManifestContent.DELETES:
            return False
        files = [one.data_file for one in manifest.fetch_manifest_entry(self._io, discard_deleted=True)]
        if any(one.file_path not in self._useless for one in files):
            return False
        self._dropped += files
        return True

    def _deletes_manifest(self, spec: int, files: Sequence[DataFile]) -> ManifestFile:
        output = self.new_manifest_output()
        writer = DeleteManifestWriter(self.spec(spec), self.schema(), output, self._snapshot_id, self._compression)
        with writer:
            for one in files:
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=one
                )
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _summary(self, snapshot_properties: dict[str, str] = {}) -> Summary:  # noqa: B006 - pyiceberg's signature
        told = dict(super()._summary(snapshot_properties).additional_properties)
        more = UpdateMetrics()
        for one in self._added_deletes:
            more.add_file(one)
        for one in self._dropped:
            more.remove_file(one)
        figures = more.to_dict()
        for name, value in figures.items():
            told[name] = str(int(told.get(name, "0")) + int(value))
        for total, added, removed in TOTALS:
            if total in told:
                told[total] = str(int(told[total]) + int(figures.get(added, "0")) - int(figures.get(removed, "0")))
        return Summary(Operation.REPLACE if self._is_replace else Operation.OVERWRITE, **told)


def write_position_deletes(table: Table, file: DataFile, rows: Sequence[int]) -> DataFile:
    """A delete file for these rows of one data file; its bounds name that file, so that readers of others pass it over."""

    def column(name: str, kind: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})

    schema = pa.schema([column("file_path", pa.string(), PATH_ID), column("pos", pa.int64(), POSITION_ID)])
    ordered = sorted(rows)
    listed = pa.Table.from_arrays(
        [pa.array([file.file_path] * len(ordered)), pa.array(ordered, pa.int64())], schema=schema
    )
    path = f"{table.location().rstrip('/')}/data/deletes-{uuid.uuid4().hex}.parquet"
    output = table.io.new_output(path)
    with output.create() as stream:
        pq.write_table(listed, stream, compression="zstd")
    bound = {PATH_ID: file.file_path.encode()}
    made = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        record_count=len(ordered),
        file_size_in_bytes=len(output),
        lower_bounds=bound,
        upper_bounds=bound,
    )
    made.spec_id = file.spec_id
    return made

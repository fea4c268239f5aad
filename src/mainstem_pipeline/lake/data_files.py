"""What manifests say of a data file, told by the task that wrote it: who commits a hundred thousand reads no footer.

A description (pyiceberg's `DataFile`) travels pickled from the task to the driver; both are ours.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Record

SCHEMA = "file binary"


def described(
    metadata: TableMetadata,
    path: str,
    size_bytes: int,
    footer: pq.FileMetaData,
    *,
    partition: Record | None = None,
    spec_id: int | None = None,
) -> DataFile:
    """Of a file that was just written. The partition, if it is not named, is told by the least and greatest values."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)  # it warns of each column without statistics
    schema = metadata.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=statistics.partition(metadata.spec(), schema) if partition is None else partition,
        file_size_in_bytes=size_bytes,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    made.spec_id = metadata.default_spec_id if spec_id is None else spec_id
    return made


def packed(value: Any) -> bytes:
    return pickle.dumps(value)


def unpacked(rows: Iterable[Any]) -> list[DataFile]:
    """Of the rows of a frame with SCHEMA; a null is a file that was not needed."""
    return [cast("DataFile", pickle.loads(row["file"])) for row in rows if row["file"] is not None]


def told(files: Iterable[DataFile | None]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow` with SCHEMA."""
    rows = [packed(one) if one is not None else None for one in files]
    if rows:
        yield pa.RecordBatch.from_arrays([pa.array(rows, pa.binary())], names=["file"])


def written(table: Table, path: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], **where: Any) -> DataFile:
    """A file of these rows, whose schema has the table's field ids; `where` as of `described`."""
    from mainstem.codec.raw_table import parquet_writer

    output = table.io.new_output(path)
    with output.create() as stream:
        with parquet_writer(stream, schema, None, None) as writer:
            for one in batches:
                writer.write_batch(one, row_group_size=max(one.num_rows, 1))
        footer = writer.writer.metadata
    return described(table.metadata, output.location, len(output), footer, **where)

"""Data files of a table read by column id: whatever a column was called when a file was written, it is itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mainstem_pipeline.lake.arrays import by_id, by_name, projected, projected_batch, small
from mainstem_pipeline.lake.deletes import PlannedFile, UnreadableTable, deleted_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema

READ_ROWS = 32_768


def file_batches(io: FileIO, planned: PlannedFile, schema: Schema) -> Iterator[pa.RecordBatch]:
    """The file's rows in the columns of the schema: renamed, widened, or null where the file has none of it.

    Without those that are deleted. A column with a default (format 3) has that where the file has none of it.
    """
    import pyarrow.parquet as pq

    wanted = written_schema(schema)
    numbers, defaults = {by_id(one) for one in wanted}, defaults_of(schema)
    deleted = deleted_rows(io, planned) if planned.deletes or planned.more else None
    row = 0
    with io.new_input(planned.path).open() as stream:
        file = pq.ParquetFile(stream)
        if any(not by_id(one) for one in file.schema_arrow):
            raise UnreadableTable(
                f"{planned.path} has columns without Iceberg's field ids: it was not written for this table",
                fix="rewrite the table with the engine that added the file",
            )
        names = [one.name for one in file.schema_arrow if by_id(one) in numbers]
        for batch in file.iter_batches(READ_ROWS, columns=names):
            if deleted is not None:
                row, batch = row + batch.num_rows, _without(batch, row, deleted)
            yield projected_batch(batch, wanted, by_id, defaults)


def defaults_of(schema: Schema) -> dict[str, Any]:
    """What rows have in a column that was added after they were written, by the column's id."""
    return {str(one.field_id): one.initial_default for one in schema.fields if one.initial_default is not None}


def _without(batch: pa.RecordBatch, first: int, deleted: Any) -> pa.RecordBatch:
    """The batch, whose first row has the number `first` in its file, less the deleted ones."""
    import numpy as np
    import pyarrow as pa

    low, high = np.searchsorted(deleted, (first, first + batch.num_rows))
    if low == high:
        return batch
    kept = np.ones(batch.num_rows, bool)
    kept[deleted[low:high] - first] = False
    return batch.filter(pa.array(kept))


def written_schema(schema: Schema) -> pa.Schema:
    """How files of this schema are written: Iceberg's field ids with every column."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.schema([one.with_type(small(one.type)) for one in schema_to_pyarrow(schema)])


def fitted(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The batch in exactly these Arrow types, as Spark compares them."""
    import pyarrow as pa

    columns = [projected(batch.column(at), one.type, by_name) for at, one in enumerate(wanted)]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)

"""Data files of a table read by column id: whatever a column was called when a file was written, it is itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mainstem_pipeline.lake.deletes import PlannedFile, deleted_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema

READ_ROWS = 32_768


def file_batches(io: FileIO, planned: PlannedFile, schema: Schema) -> Iterator[pa.RecordBatch]:
    """The file's rows in the columns of the schema: renamed, widened, or null where the file has none of it.

    Without those that are deleted.
    """
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import _to_requested_schema, pyarrow_to_schema
    from pyiceberg.schema import Schema

    numbers = {one.field_id for one in schema.fields}
    deleted = deleted_rows(io, planned) if planned.deletes or planned.more else None
    row = 0
    with io.new_input(planned.path).open() as stream:
        file = pq.ParquetFile(stream)
        stored = pyarrow_to_schema(file.schema_arrow, downcast_ns_timestamp_to_us=True)
        known = Schema(*(one for one in stored.fields if one.field_id in numbers))
        for batch in file.iter_batches(READ_ROWS, columns=[one.name for one in known.fields]):
            if deleted is not None:
                row, batch = row + batch.num_rows, _without(batch, row, deleted)
            yield _with_nulls(
                _to_requested_schema(schema, known, batch, downcast_ns_timestamp_to_us=True), batch, schema, known
            )


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


def _with_nulls(projected: pa.RecordBatch, batch: pa.RecordBatch, schema: Schema, known: Schema) -> pa.RecordBatch:
    """pyiceberg's projection makes an empty list of a list that is null: say null again."""
    import pyarrow as pa
    import pyarrow.compute as pc

    arrays = list(projected.columns)
    for at, one in enumerate(schema.fields):
        name = known.find_column_name(one.field_id)
        source = batch.column(name) if name is not None else None
        if source is not None and source.null_count and arrays[at].null_count != source.null_count:
            arrays[at] = pc.if_else(source.is_valid(), arrays[at], pa.scalar(None, arrays[at].type))
    return pa.RecordBatch.from_arrays(arrays, schema=projected.schema)


def written_schema(schema: Schema) -> pa.Schema:
    """How files of this schema are written: Iceberg's field ids with every column."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    made: pa.Schema = schema_to_pyarrow(schema)
    return made


def fitted(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The batch in exactly these Arrow types, as Spark compares them."""
    import pyarrow as pa

    columns = [batch.column(at).cast(one.type) for at, one in enumerate(wanted)]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)

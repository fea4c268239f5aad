"""Rows merged into a table by key, exactly once: the newest row of a key replaces the one that the table has.

    batch (last change of each key) ─ keys to tasks ─> rows of those keys: (file, row numbers)
    one snapshot: those rows out, the batch's rows in, the batch's number with them

`copy-on-write` writes the files anew without the rows, `merge-on-read` lists the rows in position delete files. A row whose
key the table has with a later `order_by` comes too late and is passed over. With `scd: 2` a row is not taken out but closed:
its `valid_to` is the `valid_from` of the next. A commit that another writer came before is planned anew. The rows of one
batch pass through the driver: `max_rows_per_batch` limits them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import MainstemError, Overloaded
from mainstem_pipeline.lake.commits import BATCH, CARRIED, Committer, note_batch, remove_files
from mainstem_pipeline.lake.data_files import SCHEMA, packed, unpacked
from mainstem_pipeline.lake.deletes import PlannedFile, deleted_rows, planned, planned_tasks
from mainstem_pipeline.lake.maintain import join_files
from mainstem_pipeline.lake.reading import file_batches
from mainstem_pipeline.lake.tables import PLANNED_FIELDS, pairs_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table
    from pyspark.sql import SparkSession

COPY_ON_WRITE, MERGE_ON_READ = "copy-on-write", "merge-on-read"
VALID_FROM, VALID_TO = "valid_from", "valid_to"
NUMBER, GONE, ROW = "_n", "_gone", "_row"
PLANS_MAX = 5  # when others commit meanwhile
FOUND_SCHEMA = "path string, rows array<bigint>, late array<bigint>, closed binary"


@dataclass(frozen=True, slots=True)
class Merge:
    key: tuple[str, ...]
    order_by: str = ""
    delete_where: str = ""
    scd: int = 1
    writes: str = COPY_ON_WRITE


class Moved(MainstemError):
    """Another writer committed between planning and committing."""


@dataclass(slots=True)
class Found:
    """What the table has of the batch's keys."""

    rows: dict[str, list[int]] = field(default_factory=dict)  # path → rows that go
    late: set[int] = field(default_factory=set)  # numbers of the batch's rows that are older than the table's
    closed: list[pa.Table] = field(default_factory=list)


class Merging:
    """One batch into one table."""

    def __init__(self, spark: SparkSession, committer: Committer, properties: Mapping[str, str], merge: Merge) -> None:
        self._spark, self._committer, self._properties, self._merge = spark, committer, properties, merge

    def run(self, query: str, batch: int, rows: pa.Table) -> bool:
        """`rows`: one of each key, with GONE; False if the table has the batch already."""
        import pyarrow as pa

        rows = rows.append_column(NUMBER, pa.array(range(rows.num_rows), pa.int64()))
        for _ in range(PLANS_MAX):
            try:
                return self._attempt(query, batch, rows)
            except Moved:
                continue
        raise Overloaded(
            f"{PLANS_MAX} merges in a row lost against others' commits", fix="let one flow write the table"
        )

    def _attempt(self, query: str, batch: int, rows: pa.Table) -> bool:
        from mainstem_pipeline.lake.snapshots import ChangedFiles, write_position_deletes

        table = self._committer.table()
        planned_id = table.metadata.current_snapshot_id
        tasks = {task.file.file_path: task for task in planned_tasks(table)}
        found = self._find(table, list(tasks.values()), rows)
        made = self._new_files(table, rows, found)
        cut = {path: tasks[path] for path in found.rows}
        rewritten: dict[str, DataFile] = {}
        deletes: list[DataFile] = []
        if self._merge.writes == COPY_ON_WRITE:
            rewritten = self._rewritten(table, cut, found)
        else:
            deletes = [write_position_deletes(table, task.file, found.rows[path]) for path, task in cut.items()]

        def change(current: Table, properties: dict[str, str]) -> bool:
            if int(properties.get(BATCH + query, "-1")) >= batch:
                return False
            if current.metadata.current_snapshot_id != planned_id:
                raise Moved("the table moved on")
            note_batch(properties, BATCH + query, batch)
            with current.transaction() as transaction:
                transaction.set_properties({CARRIED: json.dumps(properties)})
                update = ChangedFiles(transaction, properties, is_replace=False)
                for path, task in cut.items() if self._merge.writes == COPY_ON_WRITE else ():
                    update.delete_data_file(task.file)
                    if path in rewritten:
                        update.append_data_file(rewritten[path])
                for one in made:
                    update.append_data_file(one)
                update.append_deletes(deletes)
                update.commit()
            return True

        files = [*made, *rewritten.values(), *deletes]
        try:
            done = self._committer.attempt(change)
        except Moved:
            remove_files(table, [one.file_path for one in files])
            raise
        if not done:
            remove_files(table, [one.file_path for one in files])
        return done

    # -- what the table has

    def _find(self, table: Table, tasks: Sequence[FileScanTask], rows: pa.Table) -> Found:
        found = Found()
        if not tasks:
            return found
        merge = self._merge
        names = list(dict.fromkeys([*merge.key, *([merge.order_by] if merge.order_by else []), NUMBER]))
        planned_rows = [((one.path, list(one.deletes)),) for one in map(planned, tasks)]
        spread = self._spark.sparkContext.parallelize(planned_rows, len(planned_rows))
        frame = self._spark.createDataFrame(spread, f"file struct<{PLANNED_FIELDS}>")
        look = finder(table.metadata_location, self._properties, merge, _packed(rows.select(names)))
        for told in frame.mapInArrow(look, FOUND_SCHEMA).collect():
            if told["rows"]:
                found.rows[told["path"]] = list(told["rows"])
            found.late |= set(told["late"])
            if told["closed"] is not None:
                found.closed.append(_unpacked(bytes(told["closed"])))
        return found

    def _new_files(self, table: Table, rows: pa.Table, found: Found) -> list[DataFile]:
        """The batch's rows that are to be in the table, and with `scd: 2` those that they close."""
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        late = pc.is_in(rows[NUMBER], value_set=pa.array(sorted(found.late), pa.int64()))
        kept = rows.filter(pc.and_(pc.invert(late), pc.invert(rows[GONE])))
        parts = [kept.drop_columns([NUMBER, GONE])]
        if self._merge.scd == 2:
            parts = [_opened(parts[0], self._merge), *(_closed(one, rows, self._merge) for one in found.closed)]
        whole = pa.concat_tables(parts, promote_options="permissive")
        if not whole.num_rows:
            return []
        return list(_dataframe_to_data_files(table_metadata=table.metadata, df=whole, io=table.io))

    def _rewritten(self, table: Table, cut: Mapping[str, FileScanTask], found: Found) -> dict[str, DataFile]:
        """The files without the rows that go, written by tasks; one that has no other rows has no successor."""
        if not cut:
            return {}
        given = [
            ((one.path, list(one.deletes)), found.rows[one.path], packed((task.file.spec_id, task.file.partition)))
            for task, one in ((task, planned(task)) for task in cut.values())
        ]
        spread = self._spark.sparkContext.parallelize(given, len(given))
        frame = self._spark.createDataFrame(spread, f"old struct<{PLANNED_FIELDS}>, rows array<bigint>, place binary")
        made = frame.mapInArrow(rewriter(table.metadata_location, self._properties), f"path string, {SCHEMA}").collect()
        kept = [row for row in made if row["file"] is not None]
        return dict(zip((row["path"] for row in kept), unpacked(kept), strict=True))


def finder(
    metadata: str, properties: Mapping[str, str], merge: Merge, keys: bytes
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: planned files in, which of their rows have the keys out."""

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyiceberg.table import StaticTable

        table, wanted = StaticTable.from_metadata(metadata, dict(properties)), _unpacked(keys)
        kinds = [pa.string(), pa.list_(pa.int64()), pa.list_(pa.int64()), pa.binary()]
        schema = pa.schema(list(zip(("path", "rows", "late", "closed"), kinds, strict=True)))
        for batch in batches:
            for one in batch.column(0).to_pylist():
                file = PlannedFile(one["path"], pairs_of(one["deletes"]))
                rows, late, closed = _matches(table, file, wanted, merge)
                packed = _packed(closed) if closed is not None else None
                told = {"path": file.path, "rows": rows, "late": late, "closed": packed}
                yield pa.RecordBatch.from_pylist([told], schema=schema)

    return find


def _matches(
    table: Any, file: PlannedFile, keys: pa.Table, merge: Merge
) -> tuple[list[int], list[int], pa.Table | None]:
    """Rows of the file that go, numbers of the batch's rows that come too late, and with `scd: 2` the rows themselves."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    names = (
        table.schema().column_names if merge.scd == 2 else [*merge.key, *([merge.order_by] if merge.order_by else [])]
    )
    names = [name for name in dict.fromkeys(names) if "." not in name]
    deleted = deleted_rows(table.io, file)
    rows, late, closed = list[int](), list[int](), list[pa.Table]()
    first = 0
    for batch in file_batches(table.io, PlannedFile(file.path), table.schema().select(*names)):
        numbers = np.arange(first, first + batch.num_rows)
        first += batch.num_rows
        whole = pa.Table.from_batches([batch]).append_column(ROW, pa.array(numbers, pa.int64()))
        stays = ~np.isin(numbers, deleted)
        if merge.scd == 2:
            stays &= np.asarray(whole[VALID_TO].is_null())
        side = pa.table(
            {f"{name}": whole[name].cast(keys.schema.field(name).type) for name in merge.key} | {ROW: whole[ROW]}
        )
        joined = side.filter(pa.array(stays)).join(keys, keys=list(merge.key), join_type="inner")
        if not joined.num_rows:
            continue
        is_late = np.zeros(joined.num_rows, bool)
        if merge.order_by:
            at = joined[ROW].to_numpy() - (first - batch.num_rows)
            known = whole[merge.order_by].take(pa.array(at)).cast(keys.schema.field(merge.order_by).type)
            is_late = np.asarray(pc.fill_null(pc.greater(known, joined[merge.order_by]), False))
        found, number = joined[ROW].to_numpy(), joined[NUMBER].to_numpy()
        late += [int(one) for one in number[is_late]]
        rows += sorted(int(one) for one in found[~is_late])
        if merge.scd == 2 and (~is_late).any():
            at = found[~is_late] - (first - batch.num_rows)
            closed.append(
                whole.take(pa.array(at)).drop_columns([ROW]).append_column(NUMBER, pa.array(number[~is_late]))
            )
    return rows, late, pa.concat_tables(closed) if closed else None


def rewriter(
    metadata: str, properties: Mapping[str, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: planned files and the rows that go in, the files without them out."""

    def rewrite(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyiceberg.table import StaticTable

        table = StaticTable.from_metadata(metadata, dict(properties))
        schema = pa.schema([("path", pa.string()), ("file", pa.binary())])
        for batch in batches:
            for row in batch.to_pylist():
                one = row["old"]
                old = PlannedFile(one["path"], pairs_of(one["deletes"]), tuple(row["rows"]))
                made = join_files(table, [old], row["place"])
                told = {"path": one["path"], "file": packed(made) if made is not None else None}
                yield pa.RecordBatch.from_pylist([told], schema=schema)

    return rewrite


def _opened(rows: pa.Table, merge: Merge) -> pa.Table:
    """New versions: valid from their time on, for now without an end."""
    import pyarrow as pa

    times = rows[merge.order_by].cast(pa.timestamp("us", tz="UTC"))
    return rows.append_column(VALID_FROM, times).append_column(VALID_TO, pa.nulls(len(rows), times.type))


def _closed(versions: pa.Table, rows: pa.Table, merge: Merge) -> pa.Table:
    """Versions that end where the batch's row of their key begins."""
    import pyarrow as pa

    ends = rows[merge.order_by].cast(pa.timestamp("us", tz="UTC")).take(versions[NUMBER])
    at = versions.schema.get_field_index(VALID_TO)
    return versions.set_column(at, VALID_TO, ends).drop_columns([NUMBER])


def _packed(rows: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _unpacked(data: bytes) -> pa.Table:
    import pyarrow as pa

    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()

"""A decoded table: the fields of the values as columns. Made from a raw table, and made again from it; or in its place.

| column | |
|---|---|
| `_log`, `_offset`, `_topic`, `_timestamp`, `_key` | the record, as in the raw table |
| one for each field of the JSON (`shapes.py`) | boolean, long, double, string; objects are structs, lists are lists |
| `_rest` | JSON of what has no column: values of another type than their column's, fields beyond COLUMNS_MAX |
| `_reason` | why a value has no fields: it is not a JSON object |
| `_value` | only where there is no raw table: the bytes of a value that has no fields |

Values that a serialiser of the registry wrote are decoded by its schemas, all others are read as JSON. A field that is new
gets a column, also inside structs. Where a column of longs meets a fraction, Iceberg cannot widen it: the column becomes one
of doubles, and the table is emptied and made again from the raw one. Columns that the table is partitioned or sorted by
stay, and so do all columns of a table without a raw one; there the fraction is the rest.

The table's property POSITIONS says up to which offset of each log it goes; it moves with the rows, in one commit. A
commit that another one came before is planned again. Tasks decode (`decode_tasks.py`), in Spark where it is there.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mainstem.codec.raw_table import LOG_ID, OFFSET_ID, current_columns
from mainstem.model.errors import ConfigError, Overloaded
from mainstem_pipeline.lake.catalog import LakeOptions, identifier, load_table, open_catalog
from mainstem_pipeline.lake.commits import TABLE_PROPERTIES, remove_files, settled
from mainstem_pipeline.lake.decode_tasks import FileJob, Outcome, Run, Target, here
from mainstem_pipeline.lake.deletes import planned, planned_tasks
from mainstem_pipeline.lake.layout import check_layout, lay_out
from mainstem_pipeline.lake.shapes import LONG_MAX, OWN, Fields, Learner, fields_of, iceberg_fields, widened
from mainstem_pipeline.options import Given

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table

POSITIONS, OF = "mainstem.decoded.positions", "mainstem.decoded.of"
ROWS_PER_COMMIT = 5_000_000
ROWS_PER_JOB = 500_000  # of files; one that has more is a job by itself
ATTEMPTS_MAX = 10


class Decoded:
    """One decoded table beside a raw one; `catch_up` brings it to where its raw table is."""

    def __init__(
        self,
        lake: LakeOptions,
        raw: str,
        table: str,
        broker: Mapping[str, str],
        partition: Sequence[str] = (),
        sort: Sequence[str] = (),
        *,
        run: Run = here,
    ) -> None:
        """`broker`: how to reach it, as options of the source; `run`: where tasks run."""
        check_layout(partition, sort)
        self._lake, self._catalog, self._raw, self.name = lake, open_catalog(lake), raw, table
        self._partition, self._sort = tuple(partition), tuple(sort)
        self._connection, self._run = Given(dict(broker), ()).connection(), run

    def begin_again(self) -> None:
        """Forget what was decoded: by schemas that came late, everything is decoded anew from the raw table."""
        table = self._table()
        if table is not None:
            _empty(table, set())

    def catch_up(self) -> int:
        """Returns how many rows it added."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        added, lost, learns = 0, 0, True
        while True:
            table = self._table()
            try:
                count = self._step(table, learns)
            except (CommitFailedException, ValidationException):
                lost += 1
                if lost >= ATTEMPTS_MAX:
                    raise Overloaded(
                        f"table {self.name}: {ATTEMPTS_MAX} commits lost against others",
                        fix="let one process decode it",
                    ) from None
                continue
            if count is None:
                return added
            added += max(count, 0)
            learns = count >= 0  # less: what they need has no place in the table

    def _table(self) -> Table | None:
        if not self._catalog.table_exists(identifier(self.name)):
            return None
        table = self._catalog.load_table(identifier(self.name))
        if table.properties.get(OF) != self._raw:
            raise ConfigError(
                f"table {self.name} is not decoded from {self._raw}",
                fix="give it another name: --decode-table NAMESPACE.NAME",
            )
        return table

    def _step(self, table: Table | None, learns: bool = True) -> int | None:
        """One commit's worth of rows; None: there is nothing new; -1: nothing could be learned."""
        positions = {} if table is None else json.loads(table.properties.get(POSITIONS, "{}"))
        jobs, ends = self._jobs(positions)
        if not jobs:
            return None
        if table is None:
            table = self._make()
        target = Target(
            table.metadata_location,
            self._lake.file_properties(),
            self._connection,
            f"decoded-{uuid.uuid4().hex[:8]}",
            learns,
            laid_out_by(table),
        )
        outcomes = self._run(jobs, target)
        files = [one for outcome in outcomes for one in outcome.files]
        grown = shapes_of(outcomes)
        if grown or (not positions and is_plain(table) and (self._partition or self._sort)):
            remove_files(table, [one.file_path for one in files])
            return 0 if self._evolve(table, grown, is_new=not positions) else -1
        for outcome in outcomes:
            for log, end in outcome.ends.items():
                ends[log] = max(ends.get(log, 0), end)
        self._commit(table, {**positions, **ends}, files)
        return sum(one.record_count for one in files)

    @staticmethod
    def _commit(table: Table, positions: dict[str, int], files: Sequence[DataFile]) -> None:
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        try:
            with table.transaction() as transaction:
                transaction.set_properties({POSITIONS: json.dumps(positions)})
                with transaction.update_snapshot().merge_append() as update:
                    for one in files:
                        update.append_data_file(one)
        except (CommitFailedException, ValidationException):  # of any other failure it is not known what it did
            remove_files(table, [one.file_path for one in files])
            raise

    def _jobs(self, positions: dict[str, int]) -> tuple[list[FileJob], dict[str, int]]:
        """Files that are due, in order, as many as one commit takes; and where they end, as their statistics tell."""
        raw = load_table(self._catalog, self._raw)
        columns = current_columns(raw)
        due: list[tuple[int, int, int, FileScanTask]] = []
        for task in planned_tasks(raw):
            log, first, last = _bounds(task, columns[LOG_ID][0], columns[OFFSET_ID][0])
            if last >= positions.get(str(log), 0):
                due.append((log, first, last, task))
        jobs: list[list[FileScanTask]] = []
        rows, job_rows, ends = 0, ROWS_PER_JOB, dict[str, int]()
        for log, _, last, task in sorted(due, key=lambda one: one[:2]):
            if rows >= ROWS_PER_COMMIT:
                break
            if job_rows >= ROWS_PER_JOB:
                jobs.append([])
                job_rows = 0
            jobs[-1].append(task)
            rows, job_rows = rows + task.file.record_count, job_rows + task.file.record_count
            if last < LONG_MAX:
                ends[str(log)] = max(ends.get(str(log), 0), last + 1)
        made = [FileJob(tuple(map(planned, one)), raw.metadata_location, positions) for one in jobs]
        return made, ends

    def _make(self) -> Table:
        place = identifier(self.name)

        def make() -> Table:
            self._catalog.create_namespace_if_not_exists(place[:-1])
            return self._catalog.create_table(
                place, own_schema(), properties={**TABLE_PROPERTIES, OF: self._raw, POSITIONS: "{}"}
            )

        return settled(make)

    def _evolve(self, table: Table, grown: Sequence[Fields], *, is_new: bool) -> bool:
        """Columns for what tasks have learned; False if there is no place for any of it."""
        before = fields_of(table.schema(), laid_out_by(table))
        learner = joined(before, grown)
        wider = widened(before, learner.fields)
        if wider:
            _empty(table, wider)
            table = table.refresh()
        if learner.has_grown:
            add_columns(table, learner.fields)
        lays_out = is_new and is_plain(table) and bool(self._partition or self._sort)
        if lays_out:
            lay_out(table.refresh(), self._partition, self._sort)
        return learner.has_grown or lays_out


# -- what both kinds of decoded tables share


def own_schema(*, keeps_values: bool = False) -> Schema:
    """A decoded table before it has decoded anything."""
    from pyiceberg import types as t
    from pyiceberg.schema import Schema

    own: list[tuple[str, Any]] = list(
        zip(OWN, (t.LongType(), t.LongType(), t.StringType(), t.TimestamptzType(), t.BinaryType()), strict=True)
    )
    own += [("_rest", t.StringType()), ("_reason", t.StringType())]
    if keeps_values:
        own.append(("_value", t.BinaryType()))
    return Schema(*(t.NestedField(number, name, kind) for number, (name, kind) in enumerate(own, 1)))


def laid_out_by(table: Table) -> frozenset[str]:
    """Columns that partitions and order are made of: they cannot be replaced."""
    ids = [one.source_id for one in table.spec().fields] + [one.source_id for one in table.sort_order().fields]
    names = (table.schema().find_column_name(one) for one in ids)
    return frozenset(name.partition(".")[0] for name in names if name is not None)


def is_plain(table: Table) -> bool:
    return table.spec().is_unpartitioned() and table.sort_order().is_unsorted


def shapes_of(outcomes: Sequence[Outcome]) -> list[Fields]:
    return [one.shape for one in outcomes if one.shape is not None]


def joined(before: Fields, grown: Sequence[Fields]) -> Learner:
    learner = Learner(before)
    for one in grown:
        learner.join(one)
    return learner


def add_columns(table: Table, fields: Fields) -> None:
    from pyiceberg.schema import Schema

    with table.transaction() as transaction, transaction.update_schema() as change:
        change.union_by_name(Schema(*iceberg_fields(fields)))


def _empty(table: Table, without: set[str]) -> None:
    """No rows, and not these columns; the raw table has everything."""
    with table.transaction() as transaction:
        transaction.delete("true")
        if without:
            with transaction.update_schema(allow_incompatible_changes=True) as change:
                for name in without:
                    change.delete_column(name)
        transaction.set_properties({POSITIONS: "{}"})


def _bounds(task: FileScanTask, log_id: int, offset_id: int) -> tuple[int, int, int]:
    """The log of a file and its first and last offset, as its statistics tell; without them it may hold anything."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import LongType

    lower, upper = task.file.lower_bounds or {}, task.file.upper_bounds or {}
    if log_id not in lower or offset_id not in lower or offset_id not in upper:
        return 0, 0, LONG_MAX
    kind = LongType()
    return tuple(int(from_bytes(kind, one)) for one in (lower[log_id], lower[offset_id], upper[offset_id]))  # type: ignore[return-value]

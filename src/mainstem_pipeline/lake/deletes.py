"""Rows that another engine deleted without rewriting their file: which files of a table, less which rows, are its rows now.

| deletes | here |
|---|---|
| position delete files (format 2) | read: the listed rows of a data file are left out |
| deletion vectors (format 3, Puffin) | read, likewise |
| equality delete files | refused, with the engine's command that turns them into rewritten files |

Nothing that reads a table may go by its data files alone: it would bring deleted rows back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import MainstemError

if TYPE_CHECKING:
    import numpy as np
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.table import FileScanTask, Table

PARQUET, PUFFIN = "PARQUET", "PUFFIN"
REFERENCED = "referenced-data-file"  # property of a vector in a Puffin file


class UnreadableTable(MainstemError):
    """Another engine keeps something in the table that cannot be read here."""

    code = "MS-7008"


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file and the (path, format) of the delete files that concern it; `more`: other rows to be left out."""

    path: str
    deletes: tuple[tuple[str, str], ...] = ()
    more: tuple[int, ...] = ()


def planned_tasks(
    table: Table, row_filter: BooleanExpression | None = None, snapshot_id: int | None = None
) -> list[FileScanTask]:
    """The data files of the current snapshot, or of the one named, that may hold rows for the filter; with their deletes."""
    from pyiceberg.expressions import AlwaysTrue

    try:
        tasks = list(table.scan(row_filter=row_filter or AlwaysTrue(), snapshot_id=snapshot_id).plan_files())
    except ValueError as error:
        if "equality deletes" not in str(error):
            raise
        raise UnreadableTable(
            f"table {_name(table)} has equality delete files, written by another engine: "
            "which rows they delete cannot be found out here, and deleted rows must not come back",
            fix="rewrite the table with that engine; in Spark: CALL system.rewrite_data_files(table => "
            f"'{_name(table)}', options => map('delete-file-threshold', '1'))",
        ) from None
    _check_defaults(table)
    for task in tasks:
        for one in (task.file, *task.delete_files):
            allowed = (PARQUET,) if one is task.file else (PARQUET, PUFFIN)
            if _format(one) not in allowed:
                raise UnreadableTable(
                    f"table {_name(table)}: {one.file_path} is {_format(one)}, and only Parquet is read here",
                    fix="rewrite the table with the engine that wrote it, as Parquet",
                )
    return tasks


def _check_defaults(table: Table) -> None:
    """Defaults of columns are filled in where a file has none of them; those inside structs are not."""
    schema = table.schema()
    inside = set(schema.field_ids) - {one.field_id for one in schema.fields}
    for number in inside:
        if schema.find_field(number).initial_default is not None:
            raise UnreadableTable(
                f"table {_name(table)}: {schema.find_column_name(number)} has a default inside a column, "
                "and its older rows cannot be read here",
                fix="read the table with the engine that wrote it",
            )


def planned_files(
    table: Table, row_filter: BooleanExpression | None = None, snapshot_id: int | None = None
) -> list[PlannedFile]:
    return [planned(task) for task in planned_tasks(table, row_filter, snapshot_id)]


def planned(task: FileScanTask) -> PlannedFile:
    return PlannedFile(task.file.file_path, tuple(sorted((one.file_path, _format(one)) for one in task.delete_files)))


def deleted_rows(io: FileIO, file: PlannedFile) -> np.ndarray[Any, Any]:
    """Numbers of the file's deleted rows, in order."""
    import numpy as np

    found = [np.asarray(_positions(io, path, form, file.path), dtype=np.int64) for path, form in file.deletes]
    return np.unique(np.concatenate([*found, np.asarray(file.more, dtype=np.int64)]))


def _positions(io: FileIO, path: str, form: str, data_path: str) -> Any:
    import numpy as np
    import pyarrow.parquet as pq
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile

    with io.new_input(path).open() as stream:
        if form == PARQUET:
            rows = pq.read_table(stream, columns=["pos"], filters=[("file_path", "=", data_path)], use_threads=False)
            return rows["pos"].to_numpy()
        puffin = PuffinFile(stream.read())
    # One file has the vectors of many data files; the others' stay packed.
    meant = [one for one in puffin.footer.blobs if one.properties.get(REFERENCED) == data_path]
    puffin.footer = puffin.footer.model_copy(update={"blobs": meant})
    found = [one.to_vector().to_numpy() for one in deletion_vectors_from_puffin_file(puffin)]
    return np.concatenate(found) if found else []


def _format(file: Any) -> str:
    return str(getattr(file.file_format, "value", file.file_format)).upper()


def _name(table: Table) -> str:
    return ".".join(table.name())

"""Tables and their files, without Spark's session: odd names, expired snapshots, names that are not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner

from mainstem.model.errors import NotFound
from mainstem_pipeline.cli import lake as command
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.maintain import expire, listed, remove_unreferenced
from mainstem_pipeline.lake.stream import DataFileRows, TableReader
from mainstem_pipeline.lake.tables import spark_schema
from mainstem_pipeline.slices import DataLoss

if TYPE_CHECKING:
    from pyiceberg.table import Table


def made(lake: LakeOptions, name: tuple[str, str], *appends: list[int]) -> Table:
    """A table with a snapshot, and a file, for each list of numbers."""
    catalog = open_catalog(lake)
    catalog.create_namespace_if_not_exists(name[:1])
    table = catalog.create_table(name, schema=pa.schema([("n", pa.int64())]))
    for numbers in appends:
        table.append(pa.table({"n": numbers}))
    return catalog.load_table(name)


@pytest.mark.parametrize("mark", ["#", "?", "%23"])
def test_maintenance_of_a_table_or_lake_with_an_odd_name_leaves_its_neighbours_alone(tmp_path: Path, mark: str) -> None:
    lakes = {name: LakeOptions(str(tmp_path / name)) for name in ("lake", "lake#1")}
    for lake in lakes.values():
        tables = {name: made(lake, ("t", name), [1, 2]) for name in ("a", f"a{mark}b")}
        files = {name: {path for path, _ in listed(table)} for name, table in tables.items()}
        assert all(len(found) >= 3 and all(f"/{name}/" in one for one in found) for name, found in files.items())
        orphan = Path(tables[f"a{mark}b"].location().removeprefix("file://")) / "data" / "orphan.parquet"
        orphan.write_bytes(b"")
        for path in (orphan, *map(Path, (one for found in files.values() for one in found))):
            os.utime(path, (1, 1))
        assert remove_unreferenced(open_catalog(lake), f"t.a{mark}b", 60) == 1
        assert not orphan.exists()
        assert {path for found in files.values() for path in found if not Path(path).exists()} == set()


def numbers(reader: TableReader, start: int, end: int) -> list[int]:
    parts = reader.partitions({"sequence": start}, {"sequence": end})
    assert all(isinstance(one, DataFileRows) for one in parts)
    return sorted(n for part in parts for batch in reader.read(part) for n in batch.column(0).to_pylist())


def test_a_stream_of_a_table_begins_with_all_its_rows_though_snapshots_expired(tmp_path: Path) -> None:
    lake = LakeOptions(str(tmp_path / "lake"))
    table = made(lake, ("t", "a"), [1], [2], [3], [4])
    reader = TableReader(lake, "t.a", spark_schema(table))
    assert numbers(reader, 0, 4) == [1, 2, 3, 4]
    assert expire(open_catalog(lake), "t.a", 2, 0) == 2
    assert numbers(reader, 0, 4) == [1, 2, 3, 4]
    assert numbers(reader, 0, 3) == [1, 2, 3], "a batch that is run again has the rows it had"
    assert numbers(reader, 3, 4) == [4]
    with pytest.raises(DataLoss, match="expired before this flow read them"):
        reader.partitions({"sequence": 1}, {"sequence": 4})


def test_maintenance_of_a_table_that_is_not_there_is_told_before_spark_starts(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["maintain", "raw.none", "--warehouse", str(tmp_path / "lake")])
    assert isinstance(result.exception, NotFound), result.output
    assert "there is no table 'raw.none'" in str(result.exception)

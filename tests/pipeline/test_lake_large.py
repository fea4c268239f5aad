"""Commits of very many files: whoever commits knows them by what their writers tell, and opens none."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from mainstem.codec.raw_table import iceberg_schema, partition_spec
from mainstem_pipeline.lake.catalog import LakeOptions, load_table, open_catalog
from mainstem_pipeline.lake.commits import Committer, Progress, ensure_table, next_offsets_of
from mainstem_pipeline.lake.data_files import packed, told, unpacked

ROWS_PER_FILE = 100_000


def a_file(number: int) -> DataFile:
    """As a task tells it; there is no such file."""
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"/nowhere/{number:06d}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(20_000),
        record_count=ROWS_PER_FILE,
        file_size_in_bytes=64 << 20,
        lower_bounds={3: (number * ROWS_PER_FILE).to_bytes(8, "little")},
        upper_bounds={3: ((number + 1) * ROWS_PER_FILE - 1).to_bytes(8, "little")},
    )
    made.spec_id = 0
    return made


@pytest.mark.parametrize("files", [500, pytest.param(100_000, marks=pytest.mark.slow)])
def test_files_are_committed_without_being_read(tmp_path: Path, files: int) -> None:
    catalog = open_catalog(LakeOptions(str(tmp_path / "lake")))
    ensure_table(catalog, "raw.t", iceberg_schema(), partition_spec())
    rows = [row for batch in told(map(a_file, range(files))) for row in batch.to_pylist()]
    assert len(packed(a_file(0))) < 1_000, "what a task tells of a file is small"
    end = files * ROWS_PER_FILE
    progress = Progress({"t": {"0": 0}}, {"t": {"0": end}})
    assert Committer(catalog, "raw.t", "query").commit(0, unpacked(rows), progress=progress)
    table = load_table(catalog, "raw.t")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    figures = snapshot.summary.additional_properties
    assert (int(figures["total-data-files"]), int(figures["total-records"])) == (files, end)
    assert next_offsets_of(table) == {"t": {"0": end}}
    assert not Committer(catalog, "raw.t", "query").commit(0, []), "the same batch again changes nothing"

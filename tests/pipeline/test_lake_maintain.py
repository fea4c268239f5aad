"""Maintenance: small files joined in order, snapshots expired after their grace, orphans removed, archives undisturbed."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.archive import Archive
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.commits import Committer, next_offsets_of
from mainstem_pipeline.lake.maintain import compact, expire, listed, remove_unreferenced
from mainstem_pipeline.lake.rebuild import rebuilt_batches
from tests.pipeline.conftest import publish
from tests.pipeline.lake_kit import archive, orphans, rows_of, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MB = 1 << 20


@pytest.fixture
def lake(tmp_path: Path) -> LakeOptions:
    return LakeOptions(str(tmp_path / "lake"))


def fill(spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions, batches: int) -> Archive:
    """A table of small files, one a batch."""
    target = Archive(lake, "raw.t", f"filter:{topic}/#")
    for batch in range(batches):
        publish(broker, [(f"{topic}/{n % 4}", b"%d-%d" % (batch, n)) for n in range(40)])
        assert target.batch("query", descriptors(spark, broker, topic, target), batch).rows == 40
    return target


def descriptors(spark: SparkSession, broker: BrokerProcess, topic: str, target: Archive) -> DataFrame:
    options = {"url": broker.http_url, "filter": f"{topic}/#", "descriptors": "true", **target.lake.source_options()}
    start = target.position or "earliest"
    return spark.read.format("mainstem").options(**options, startingOffsets=start).load()


def test_compaction_keeps_rows_offset_order_and_the_tables_end(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    target = fill(spark, broker, topic, lake, 4)
    before, ends = rows_of(lake, "raw.t"), next_offsets_of(table_of(lake, "raw.t"))
    done = compact(spark, open_catalog(lake), "raw.t", lake.file_properties(), 128 * MB)
    assert (done.before, done.after) == (4, 1)
    table = table_of(lake, "raw.t")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "replace"
    assert next_offsets_of(table) == ends
    assert rows_of(lake, "raw.t").equals(before)
    (task,) = table.scan().plan_files()
    offsets = pq.read_table(task.file.file_path.removeprefix("file://"), columns=["offset"]).column(0).to_pylist()
    assert offsets == sorted(offsets)
    assert all(one.frame for one in rebuilt_batches(rows_of(lake, "raw.t")))
    publish(broker, [(f"{topic}/0", b"later")])
    assert target.batch("query", descriptors(spark, broker, topic, target), 4).rows == 1, "the archive goes on"
    assert len(rows_of(lake, "raw.t")) == 161


def test_files_are_joined_with_neighbours_only(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    """A large file between two small ones keeps them apart: their offsets are not next to each other."""
    target = Archive(lake, "raw.t", f"filter:{topic}/#")
    for batch, size in enumerate((10, 60_000, 10, 10)):
        publish(broker, [(f"{topic}/a", os.urandom(size))])
        target.batch("query", descriptors(spark, broker, topic, target), batch)
    done = compact(spark, open_catalog(lake), "raw.t", lake.file_properties(), 30_000)
    assert (done.before, done.after) == (4, 3)
    ranges = sorted(_offset_ranges(lake))
    assert all(one[1] < after[0] for one, after in pairwise(ranges))


def _offset_ranges(lake: LakeOptions) -> list[tuple[int, int]]:
    found = []
    for task in table_of(lake, "raw.t").scan().plan_files():
        offsets = pq.read_table(task.file.file_path.removeprefix("file://"), columns=["offset"]).column(0).to_pylist()
        found.append((min(offsets), max(offsets)))
    return found


def test_compaction_and_an_append_at_once_lose_nothing(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive commits while compaction is about to: the swap is made again on top of it."""
    target = fill(spark, broker, topic, lake, 2)
    publish(broker, [(f"{topic}/0", b"meanwhile")])
    frame = descriptors(spark, broker, topic, target)
    attempt, tried = Committer.attempt, []

    def racing(self: Committer, change: object) -> bool:
        def first_the_other(table: object, properties: dict[str, str]) -> bool:
            if not tried:
                tried.append(True)
                monkeypatch.setattr(Committer, "attempt", attempt)
                assert target.batch("query", frame, 2).rows == 1
            return bool(change(table, properties))  # type: ignore[operator]

        return attempt(self, first_the_other)

    monkeypatch.setattr(Committer, "attempt", racing)
    done = compact(spark, open_catalog(lake), "raw.t", lake.file_properties(), 128 * MB)
    assert tried
    assert done.after == 2
    assert len(rows_of(lake, "raw.t")) == 81
    assert not orphans(lake, "raw.t")


def test_a_schema_that_changed_between_files_is_one_schema_after_compaction(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    target = fill(spark, broker, topic, lake, 1)
    with table_of(lake, "raw.t").update_schema() as update:
        update.rename_column("value", "payload")
        update.delete_column("origin")
    publish(broker, [(f"{topic}/0", b"renamed")])
    target.batch("query", descriptors(spark, broker, topic, target), 1)
    before = rows_of(lake, "raw.t")
    assert compact(spark, open_catalog(lake), "raw.t", lake.file_properties(), 128 * MB).after == 1
    assert rows_of(lake, "raw.t").equals(before)
    (task,) = table_of(lake, "raw.t").scan().plan_files()
    assert "payload" in pq.read_schema(task.file.file_path.removeprefix("file://")).names


def test_expired_snapshots_take_their_files_along_once_the_grace_is_over(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    fill(spark, broker, topic, lake, 3)
    catalog = open_catalog(lake)
    compact(spark, catalog, "raw.t", lake.file_properties(), 128 * MB)
    before = rows_of(lake, "raw.t")
    scan = [task.file.file_path for task in table_of(lake, "raw.t").scan().plan_files()]
    assert expire(catalog, "raw.t", 1, 3600) == 0, "someone may still be reading them"
    assert remove_unreferenced(catalog, "raw.t", 3600) == 0
    assert len(_parquet(lake)) == 4
    assert expire(catalog, "raw.t", 1, 0) == 4
    assert remove_unreferenced(catalog, "raw.t", 3600) == 0, "files are as old as their grace at least"
    time.sleep(0.01)
    assert remove_unreferenced(catalog, "raw.t", 0) >= 3
    assert _parquet(lake) == {one.removeprefix("file://") for one in scan}
    assert rows_of(lake, "raw.t").equals(before)
    assert next_offsets_of(table_of(lake, "raw.t"))


def _parquet(lake: LakeOptions) -> set[str]:
    return {path for path, _ in listed(table_of(lake, "raw.t")) if path.endswith(".parquet")}


def test_orphans_go_when_they_are_old_and_not_before(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    fill(spark, broker, topic, lake, 1)
    folder = Path(table_of(lake, "raw.t").location().removeprefix("file://")) / "data"
    for name in ("old.parquet", "new.parquet"):
        (folder / name).write_bytes(b"nobody's")
    os.utime(folder / "old.parquet", (time.time() - 7200,) * 2)
    assert remove_unreferenced(open_catalog(lake), "raw.t", 3600) == 1
    assert not (folder / "old.parquet").exists()
    assert (folder / "new.parquet").exists()
    assert len(rows_of(lake, "raw.t")) == 40


@pytest.mark.slow
def test_the_command_maintains_every_table(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    import json
    import subprocess
    import sys

    publish(broker, [(f"other-{topic}/a", b"1")])
    archive(spark, broker, lake, f"other-{topic}/#", "raw.a")
    fill(spark, broker, topic, lake, 3)
    command = [sys.executable, "-m", "mainstem", "lake", "maintain", "--warehouse", lake.warehouse, "--json"]
    told = subprocess.run([*command, "--grace", "0s"], check=True, capture_output=True, text=True, timeout=110)
    lines = {one["table"]: one for one in map(json.loads, told.stdout.splitlines())}
    assert lines["raw.t"]["after"] == 1
    assert lines["raw.a"]["after"] == 1
    assert len(rows_of(lake, "raw.t")) == 120

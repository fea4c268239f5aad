"""A disk that fills up under a lake: told with its fix, nothing lost, and once there is room the archive goes on."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainstem.model.errors import DiskFull
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.maintain import remove_unreferenced
from mainstem_pipeline.pipeline.failures import understood
from tests.pipeline.conftest import publish
from tests.pipeline.lake_kit import archive, orphans, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", place], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_a_full_disk_ends_the_archive_and_room_lets_it_go_on(
    spark: SparkSession, broker: BrokerProcess, topic: str, small_disk: Path
) -> None:
    lake, chance = LakeOptions(str(small_disk / "lake")), random.Random(1)
    values = [chance.randbytes(10_000) for _ in range(700)]
    source, table = f"{topic}/#", "raw.t"

    def kept() -> list[bytes]:
        return [row["value"] for row in rows_of(lake, table).to_pylist()]

    publish(broker, [(f"{topic}/a", value) for value in values[:100]])
    archive(spark, broker, lake, source, table)
    publish(broker, [(f"{topic}/a", value) for value in values[100:]])
    with pytest.raises(Exception, match="space") as caught:
        archive(spark, broker, lake, source, table)
    told = understood(caught.value, "archive")
    assert isinstance(told, DiskFull), told
    assert f"no space is left where the lake lies, {lake.location}" in told.message
    assert told.fix.startswith("free space there, then run it again")
    assert kept() == values[:100]
    assert not orphans(lake, table), "a task that fails takes its files with it"
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    archive(spark, broker, lake, source, table)
    assert kept() == values
    remove_unreferenced(open_catalog(lake), table, 0.0)
    assert kept() == values
    assert not orphans(lake, table)

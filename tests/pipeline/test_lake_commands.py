"""`mainstem lake archive|archives|forget|ls`, as a user calls them; what retention took before it was archived."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from mainstem.model.errors import InvalidArgument
from mainstem.testing.broker import Broker
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.cli import lake as command
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.lake.catalog import LakeOptions
from tests.pipeline.conftest import eventually, publish
from tests.pipeline.lake_kit import ArchiveRun, orphans, rows_of
from tests.pipeline.test_exactly_once import kill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def called(broker: BrokerProcess, *words: str) -> str:
    result = CliRunner().invoke(command, [*words, "--url", broker.http_url], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_archives_are_listed_and_given_up(broker: BrokerProcess, topic: str) -> None:
    publish(broker, [(f"{topic}/a", b"x")])
    client = BrokerClient(broker.http_url)
    found = client.post("/v1/scan/lanes", {"select": {"kind": "filter", "filter": f"{topic}/#"}})["lanes"]
    ends = {one["topic"]: {str(one["partition"]): one["end"]} for one in found}
    client.post(f"/v1/archives/raw.{topic}", {"ends": ends, "filter": f"{topic}/#"})
    assert f"raw.{topic}: log 1 of {topic}/# up to offset {found[0]['end']:,}" in called(broker, "archives")
    told = [json.loads(line) for line in called(broker, "archives", "--json").splitlines()]
    assert [one["name"] for one in told if one["name"] == f"raw.{topic}"] == [f"raw.{topic}"]
    assert called(broker, "forget", f"raw.{topic}") == f"raw.{topic}: forgotten\n"
    assert f"raw.{topic}" not in called(broker, "archives")
    client.close()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["a/#", "--trigger", "soon"], "--trigger 'soon' is not a duration"),
        (["a/#", "--table", "a.b.c"], "'a.b.c' is not a table name"),
        (["a/#", "--warehouse", "s3://bucket/lake"], "must keep its position elsewhere"),
    ],
)
def test_what_cannot_be_archived_is_told_before_spark_starts(words: list[str], reason: str) -> None:
    result = CliRunner().invoke(command, ["archive", *words])
    assert isinstance(result.exception, InvalidArgument)
    assert reason in str(result.exception)


@pytest.fixture
def losing(tmp_path: Path) -> Iterator[Broker]:
    """A broker that drops what is below `lost/` whenever the test says so, archived or not."""
    settings = ("policies.lost/#.retention_ms=1", "policies.lost/#.segment_bytes=65536", "policies.lost/#.segment_ms=1")
    with Broker(*settings, engine="segment", data=tmp_path / "data") as broker:
        yield broker


def drop(broker: Broker) -> None:
    assert broker.app is not None
    assert broker.loop is not None
    asyncio.run_coroutine_threadsafe(broker.app.broker.maintenance.round(), broker.loop).result(60)


def test_what_retention_took_ends_the_archive_unless_the_loss_is_accepted(
    spark: SparkSession, losing: Broker, tmp_path: Path
) -> None:
    lake = LakeOptions(str(tmp_path / "lake"))

    def send(numbers: range) -> None:
        publish(losing, [("lost/a", b"%d" % n + b"." * 500) for n in numbers])  # type: ignore[arg-type]

    send(range(300))
    assert ArchiveRun(spark, losing, lake, "lost/#", "raw.t").wait()["rows"] == 300
    send(range(300, 900))
    drop(losing)
    with pytest.raises(Exception, match=r"(?s)DataLoss.*aged out|rows are missing"):
        ArchiveRun(spark, losing, lake, "lost/#", "raw.t").wait()
    assert len(rows_of(lake, "raw.t")) == 300
    send(range(900, 950))
    assert 50 <= ArchiveRun(spark, losing, lake, "lost/#", "raw.t", accept_loss=True).wait()["rows"] < 650
    numbers = [int(row["value"].split(b".")[0]) for row in rows_of(lake, "raw.t").to_pylist()]
    assert numbers[:300] == list(range(300))
    assert numbers[300:] == list(range(numbers[300], 950)), "what was left is whole"
    assert not orphans(lake, "raw.t")


@pytest.mark.slow  # starts Spark
@pytest.mark.timeout(300)
def test_the_command_keeps_a_table_up_to_date_until_it_is_stopped(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    lake, out = LakeOptions(str(tmp_path / "lake")), tmp_path / "out.jsonl"
    publish(broker, [(f"{topic}/a", b"%d" % n) for n in range(20)])
    words = [
        "lake",
        "archive",
        f"{topic}/#",
        "--table",
        f"raw.{topic}",
        "--trigger",
        "500ms",
        "--accept-loss",
        "--json",
    ]
    command = [sys.executable, "-m", "mainstem", *words, "--url", broker.http_url, "--warehouse", lake.warehouse]
    with out.open("wb") as stdout, (tmp_path / "err").open("wb") as stderr:
        process = subprocess.Popen(
            [*command, "--master", "local[1]"], stdout=stdout, stderr=stderr, env=os.environ, start_new_session=True
        )
    try:
        for count in (20, 35):
            eventually(lambda wanted=count: _total(out) >= wanted or process.poll() is not None, f"{count} rows", 120)
            assert process.poll() is None, (tmp_path / "err").read_text()[-2000:]
            publish(broker, [(f"{topic}/a", b"%d" % n) for n in range(20, 35)] if count == 20 else [])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        kill(process)
    assert [row["value"] for row in rows_of(lake, f"raw.{topic}").to_pylist()] == [b"%d" % n for n in range(35)]
    assert f"raw.{topic}: log 1 of {topic}/# up to" in called(broker, "archives"), "retention was told"
    listed = [sys.executable, "-m", "mainstem", "lake", "ls", "--warehouse", lake.warehouse]
    assert f"raw.{topic}: 35 rows" in subprocess.run(listed, check=True, capture_output=True, text=True).stdout


def _total(out: Path) -> int:
    lines = [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")]
    return max((one["rows_total"] for one in lines if one["event"] == "batch"), default=0)

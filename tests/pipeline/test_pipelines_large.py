"""The telemetry example with twenty thousand and ten million records; `test_pipelines.py` runs it always, with a few."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions
from mainstem_pipeline.lake.tables import read_table
from mainstem_pipeline.pipeline.checks import load_pipeline
from mainstem_pipeline.pipeline.progress import Lines
from mainstem_pipeline.pipeline.runner import Runner, RunOptions
from tests.pipeline.conftest import produce, publish, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
MQTT_SHARE = 101  # one record of so many comes by MQTT: its Python client is the slow part
BAD_SHARE, HOT_SHARE = 1_009, 10_007
GATEWAY = "sensors.south.gateway.reading"
Run = Callable[..., None]


def reading(number: int) -> bytes:
    if number % BAD_SHARE == 1:
        return b"broken %d" % number
    celsius = 95 if number % HOT_SHARE == 2 else number % 70
    minute = number // 100 % 60
    return b'{"device": "d%d", "celsius": %d, "at": "2026-11-15T10:%02d:00Z"}' % (number % 100, celsius, minute)


def readings(numbers: range, *, by_mqtt: bool) -> Iterator[tuple[str, bytes]]:
    for number in numbers:
        if (number % MQTT_SHARE == 0) == by_mqtt:
            yield f"sensors/north/d{number % 100}/reading", reading(number)


def as_command(path: Path) -> Run:
    """As a user runs it, in a process and a JVM of its own."""

    def run(*flows: str) -> None:
        chosen = [word for flow in flows for word in ("--flow", flow)]
        command = [sys.executable, "-m", "mainstem", "pipeline", "run", str(path), "--once", *chosen]
        subprocess.run(command, check=True, env=os.environ)

    return run


def in_session(path: Path, spark: SparkSession) -> Run:
    def run(*flows: str) -> None:
        assert Runner(load_pipeline(path), RunOptions(once=True, flows=flows), Lines(), spark).run() == 0

    return run


@pytest.mark.slow
@pytest.mark.parametrize("records", [20_000, pytest.param(10_000_000, marks=pytest.mark.timeout(3600))])
def test_every_reading_of_both_protocols_goes_through_the_example_once(
    own_broker: BrokerProcess, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    monkeypatch.setenv("MAINSTEM_URL", own_broker.http_url)
    path = shutil.copytree(EXAMPLES / "telemetry", tmp_path / "telemetry") / "pipeline.yaml"
    run = as_command(path) if records > 1_000_000 else in_session(path, spark)
    north = publish(own_broker, readings(range(records), by_mqtt=True))
    south = produce(own_broker, GATEWAY, (value for _, value in readings(range(records), by_mqtt=False)))
    assert north + south == records
    run()
    produce(own_broker, GATEWAY, [b'{"device": "d0", "celsius": 1, "at": "2026-11-15T13:00:00Z"}'])  # the hour is over
    run("hourly")

    bad = len(range(1, records, BAD_SHARE))
    lake = LakeOptions(str(path.parent / "lake"))
    rows = read_table(spark, lake, "iot.readings")
    assert rows.count() == records - bad
    assert rows.select("site", "log_offset").distinct().count() == records - bad
    bad_north = sum(1 for number in range(1, records, BAD_SHARE) if number % MQTT_SHARE == 0)
    sites = {row.site: row["count"] for row in rows.groupBy("site").count().collect()}
    assert sites == {"north": north - bad_north, "south": south - (bad - bad_north)}
    dead = read_table(spark, lake, "iot.dead_readings")
    assert dead.select("origin", "offset").distinct().count() == dead.count() == bad
    assert read(spark, own_broker, subscribe="sensors.dead").count() == bad
    hours = read_table(spark, lake, "iot.hourly")
    assert hours.count() == 100, "devices, one hour each"
    assert hours.groupBy().sum("readings").collect()[0][0] == records - bad
    hot = [n for n in range(2, records, HOT_SHARE) if n % BAD_SHARE != 1]
    assert read(spark, own_broker, filter="alerts/+").count() == len(hot)

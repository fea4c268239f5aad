"""The telemetry example with records of MQTT and Kafka: a small run always, ten million with `make test-all`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions
from mainstem_pipeline.lake.tables import read_table
from mainstem_pipeline.pipeline.checks import load_pipeline
from mainstem_pipeline.pipeline.progress import Lines
from mainstem_pipeline.pipeline.runner import Runner, RunOptions
from tests.pipeline.conftest import produce, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
MQTT_SHARE = 100  # one record of so many comes by MQTT: its Python client is the slow part


def reading(number: int) -> bytes:
    device, minute = number % 100, number // 100 % 60
    return json.dumps(
        {"device": f"d{device}", "celsius": number % 70, "at": f"2026-11-15T10:{minute:02d}:00Z"}
    ).encode()


@pytest.mark.parametrize(
    "records",
    [20_000, pytest.param(10_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])],
)
def test_every_reading_of_both_protocols_is_in_the_table_once(
    own_broker: BrokerProcess, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    monkeypatch.setenv("MAINSTEM_URL", own_broker.http_url)
    shutil.copytree(EXAMPLES / "telemetry", tmp_path / "telemetry")
    by_mqtt = range(0, records, MQTT_SHARE)
    publish(own_broker, ((f"sensors/north/d{n % 100}/reading", reading(n)) for n in by_mqtt))
    produce(own_broker, "sensors.south.gateway.reading", (reading(n) for n in range(records) if n % MQTT_SHARE))
    pipeline = load_pipeline(tmp_path / "telemetry" / "pipeline.yaml")
    assert Runner(pipeline, RunOptions(once=True, flows=("readings",)), Lines(), spark).run() == 0
    rows = read_table(spark, LakeOptions(str(tmp_path / "telemetry" / "lake")), "iot.readings")
    sites = {row.site: row["count"] for row in rows.groupBy("site").count().collect()}
    assert sites == {"north": len(by_mqtt), "south": records - len(by_mqtt)}
    assert rows.select("site", "log_offset").distinct().count() == records

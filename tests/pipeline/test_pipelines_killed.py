"""A pipeline's driver killed between its sinks, and between the last sink and Spark's own commit: results exactly once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions
from mainstem_pipeline.lake.tables import read_table
from tests.pipeline.conftest import eventually, produce, read, values_of
from tests.pipeline.test_exactly_once import kill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = Path(__file__).with_name("pipeline_job.py")
FILE = """
name: p
lake: {warehouse: ./lake}
flows:
  - name: f
    from: {topic: in}
    decode: {format: json, schema: "n int"}
    sql: select n from input
    max_rows_per_batch: 60
    to: [{table: t.n}, {topic: out}]
    dead_letters: {topic: dead, table: t.dead, max_ratio: 1}
"""


@pytest.mark.slow  # starts Spark three times
@pytest.mark.timeout(600)
def test_driver_killed_between_sinks_and_before_sparks_commit(
    own_broker: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(FILE)
    produce(own_broker, "in", [b'{"n": %d}' % n if n % 10 else b"bad %d" % n for n in range(200)])
    environment = {**os.environ, "MAINSTEM_URL": own_broker.http_url}
    log = tmp_path / "job.log"

    def start(sink: str) -> subprocess.Popen[bytes]:
        stall = tmp_path / f"stalled-{sink}"
        with log.open("ab") as out:
            command = [sys.executable, str(JOB), str(file), str(stall), sink]
            return subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)

    for sink in ("table-0", "dead-letters-table"):  # the first of four to take the batch, and the last
        process = start(sink)
        try:
            eventually(
                lambda name=sink, one=process: (tmp_path / f"stalled-{name}").exists() or one.poll() is not None,
                f"{sink} to take a batch",
                180,
            )
            assert process.poll() is None, log.read_text()[-3000:]
        finally:
            kill(process)
    process = start("")
    try:
        eventually(lambda: process.poll() is not None, "the end of the pipeline", 240)
    finally:
        kill(process)
    assert process.returncode == 0, log.read_text()[-3000:]
    lake = LakeOptions(str(tmp_path / "lake"))
    good, bad = [n for n in range(200) if n % 10], sorted(b"bad %d" % n for n in range(0, 200, 10))
    assert sorted(row.n for row in read_table(spark, lake, "t.n").collect()) == good
    assert sorted(bytes(row.value) for row in read_table(spark, lake, "t.dead").collect()) == bad
    assert values_of(read(spark, own_broker, subscribe="out")) == sorted(b'{"n":%d}' % n for n in good)
    assert values_of(read(spark, own_broker, subscribe="dead")) == bad

"""Driver, executors and broker killed while a pipeline runs, dead letters included: results exactly once."""

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
from tests.pipeline.cluster_kit import standalone_cluster
from tests.pipeline.conftest import eventually, produce, read, values_of
from tests.pipeline.test_cluster import kill_executor
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

    for sink in ("table:t.n", "dead-letters-table"):  # the first of four to take the batch, and the last
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
        file.write_text(
            FILE.replace("[{table: t.n}, {topic: out}]", "[{topic: out}, {table: t.n}]")
        )  # it still knows them
    process = start("")
    try:
        eventually(lambda: process.poll() is not None, "the end of the pipeline", 240)
    finally:
        kill(process)
    assert process.returncode == 0, log.read_text()[-3000:]
    check_whole(spark, own_broker, tmp_path, 200)


def check_whole(spark: SparkSession, broker: BrokerProcess, folder: Path, count: int) -> None:
    """Every number in the table and the topic, every bad record in both dead letters: once."""
    lake = LakeOptions(str(folder / "lake"))
    good, bad = [n for n in range(count) if n % 10], sorted(b"bad %d" % n for n in range(0, count, 10))
    assert sorted(row.n for row in read_table(spark, lake, "t.n").collect()) == good
    assert sorted(bytes(row.value) for row in read_table(spark, lake, "t.dead").collect()) == bad
    assert values_of(read(spark, broker, subscribe="out")) == sorted(b'{"n":%d}' % n for n in good)
    assert values_of(read(spark, broker, subscribe="dead")) == bad


@pytest.mark.slow  # a cluster of its own
@pytest.mark.timeout(900)
def test_executors_and_broker_killed_while_the_same_file_runs_on_a_cluster(
    own_broker: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    cluster_settings = "spark: {spark.executor.memory: 512m, spark.driver.host: 127.0.0.1, spark.cores.max: '2'}\n"
    file.write_text(FILE + cluster_settings)
    produce(own_broker, "in", [b'{"n": %d}' % n if n % 10 else b"bad %d" % n for n in range(600)])
    checkpoint, log = tmp_path / ".mainstem" / "p" / "f" / "checkpoint", tmp_path / "job.log"
    with standalone_cluster(tmp_path) as cluster, log.open("ab") as out:
        command = [sys.executable, "-m", "mainstem", "pipeline", "run", str(file), "--once", "--fast-start"]
        environment = {**os.environ, "MAINSTEM_URL": own_broker.http_url}
        process = subprocess.Popen(
            [*command, "--master", cluster.master], stdout=out, stderr=out, env=environment, start_new_session=True
        )
        try:
            for batch in (1, 3):
                kill_executor(cluster, checkpoint, batch, process)
            reached = eventually(
                lambda: (checkpoint / "offsets" / "6").exists() or process.poll() is not None, "batch 6", 300
            )
            assert reached
            assert process.poll() is None, log.read_text()[-3000:]
            own_broker.kill()
            own_broker.start()
            eventually(lambda: process.poll() is not None, "the end of the pipeline", 400)
        finally:
            kill(process)
    assert process.returncode == 0, log.read_text()[-3000:]
    check_whole(spark, own_broker, tmp_path, 600)

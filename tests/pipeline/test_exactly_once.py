"""Driver, task and broker are killed in turn while a stream copies: nothing is lost, nothing is there twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from mainstem.testing.process import BrokerProcess
from tests.pipeline.conftest import eventually, produce, read, stream
from tests.pipeline.copy_job import KEY_OF_SOURCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = Path(__file__).with_name("copy_job.py")


@contextmanager
def job(broker: BrokerProcess, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(JOB), broker.http_url, "in/#", "out", str(folder / "checkpoint"), *arguments]
    with (folder / "job.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the driver, its JVM and its Python workers."""
    if process.poll() is None:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in family:
            try:
                one.kill()
            except psutil.NoSuchProcess:
                continue
        process.wait()


def python_workers(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Processes that run tasks: children of pyspark's daemon."""
    found = []
    for one in psutil.Process(process.pid).children(recursive=True):
        try:
            if any("pyspark.daemon" in part for part in one.cmdline()) and "java" not in one.name():
                found.append(one)
        except psutil.Error:
            continue
    return [one for one in found if one.ppid() in {other.pid for other in found}]


def check_copied(spark: SparkSession, broker: BrokerProcess, sent: list[bytes]) -> None:
    """Every row of the source is in the sink once, under its own offset; and nothing else is."""
    source = read(spark, broker, filter="in/#").select("canonical_topic", "offset", "value").collect()
    sink = read(spark, broker, subscribe="out").select("key", "value").collect()
    came = sorted((f"{row.canonical_topic}:{row.offset}".encode(), bytes(row.value)) for row in source)
    assert sorted((bytes(row.key), bytes(row.value)) for row in sink) == came
    assert sorted(value for _, value in came) == sorted(sent)


@pytest.mark.timeout(400)
def test_driver_and_tasks_killed(own_broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    sent = [b"%04d" % n * 100 for n in range(500)]
    produce(own_broker, "in.a", sent[:300], **{"batch.size": 16_000})
    stalled = tmp_path / "stalled"
    with job(own_broker, tmp_path, "--stall", str(stalled)) as first:
        eventually(stalled.exists, "the sink's first commit", 120)
        kill(first)  # the sink has the batch, Spark's commit log has not
    produce(own_broker, "in.b", sent[300:], **{"batch.size": 16_000})
    with job(own_broker, tmp_path, "--slow") as second:
        killed = 0

        def kill_a_worker() -> bool:
            nonlocal killed
            running = (tmp_path / "checkpoint" / "offsets" / "1").exists()  # not while Spark only looks around
            if second.poll() is None and killed < 3 and running:
                for worker in python_workers(second)[:1]:
                    os.kill(worker.pid, signal.SIGKILL)
                    killed += 1
            return killed >= 3 or second.poll() is not None

        eventually(kill_a_worker, "three workers killed", 120)
        assert killed == 3
        eventually(lambda: second.poll() is not None, "the end of the job", 180)
        assert second.returncode == 0, (tmp_path / "job.log").read_text()[-3000:]
    check_copied(spark, own_broker, sent)


@pytest.mark.timeout(300)
def test_broker_killed(own_broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    sent: list[bytes] = []

    def send(count: int) -> None:
        fresh = [b"%06d" % n for n in range(len(sent), len(sent) + count)]
        produce(own_broker, "in.a", fresh)
        sent.extend(fresh)

    send(300)
    query = (
        stream(
            spark, own_broker, filter="in/#", startingOffsets="earliest", maxOffsetsPerTrigger="40", retrySeconds="60"
        )
        .selectExpr(KEY_OF_SOURCE, "value")
        .writeStream.format("mainstem")
        .option("url", own_broker.http_url)
        .option("topic", "out")
        .option("retrySeconds", "60")
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        for done in (80, 400, 700):
            eventually(lambda enough=done: rows_done(query) >= enough, f"{done} rows copied")
            own_broker.kill()
            own_broker.start()
            send(300)
        eventually(lambda: rows_done(query) >= len(sent), "all rows copied", 120)
    finally:
        query.stop()
    assert query.exception() is None
    check_copied(spark, own_broker, sent)


def rows_done(query: object) -> int:
    return sum(one.numInputRows for one in query.recentProgress)  # type: ignore[attr-defined]

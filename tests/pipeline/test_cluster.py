"""The same jobs on a standalone cluster: a master and two workers on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from mainstem.testing.process import BrokerProcess
from tests.pipeline.cluster_kit import Cluster, standalone_cluster
from tests.pipeline.conftest import eventually, produce, read, values_of
from tests.pipeline.test_exactly_once import check_copied, job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_job_runs_on_a_standalone_cluster(own_broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    sent = [b"%05d" % n * 20 for n in range(5000)]
    produce(own_broker, "in", sent, **{"batch.size": 20_000})
    with standalone_cluster(tmp_path) as cluster:
        command = [sys.executable, str(Path(__file__).with_name("cluster_job.py"))]
        command += [cluster.master, own_broker.http_url, "in", "out", str(tmp_path / "job.log")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"count": 5000, "executors": 2}
    assert values_of(read(spark, own_broker, subscribe="out")) == sorted(sent)


def test_executors_killed(own_broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    """SIGKILL to the JVM that runs tasks, three times, each in the middle of a batch."""
    sent = [b"%04d" % n * 100 for n in range(2400)]
    produce(own_broker, "in.a", sent[:1200], **{"batch.size": 16_000})
    produce(own_broker, "in.b", sent[1200:], **{"batch.size": 16_000})
    with (
        standalone_cluster(tmp_path) as cluster,
        job(own_broker, tmp_path, "--slow", "--master", cluster.master) as driver,
    ):
        killed: set[int] = set()
        for batch in (1, 4, 7):
            killed.add(kill_executor(cluster, tmp_path / "checkpoint", batch, driver))
        assert len(killed) == 3
        eventually(lambda: driver.poll() is not None, "the end of the job", 300)
        assert driver.returncode == 0, (tmp_path / "job.log").read_text()[-3000:]
    check_copied(spark, own_broker, sent)


def kill_executor(cluster: Cluster, checkpoint: Path, batch: int, driver: subprocess.Popen[bytes]) -> int:
    """One that runs a task of this batch or a later one; returns its process id."""

    def running() -> psutil.Process | None:
        assert driver.poll() is None, "the job ended before its executors were killed"
        begun = [int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*")]
        if not begun or max(begun) < batch or (checkpoint / "commits" / str(max(begun))).exists():
            return None
        busy = [one for one in cluster.executors() if python_tasks(one)]
        return busy[0] if busy else None

    victim: psutil.Process = eventually(running, f"an executor at work in batch {batch}", 200)
    victim.kill()
    return victim.pid


def python_tasks(executor: psutil.Process) -> int:
    """Python processes under the executor: a daemon, and a worker for each task."""
    try:
        return sum("python" in one.name() for one in executor.children(recursive=True)) - 1
    except psutil.NoSuchProcess:
        return 0

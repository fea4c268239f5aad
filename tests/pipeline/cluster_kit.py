"""A Spark standalone cluster on loopback: a master and two workers of one core each, in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from mainstem_pipeline.session import find_java
from tests.pipeline.conftest import eventually
from tests.pipeline.test_exactly_once import kill

DEPLOY = "org.apache.spark.deploy"
FLAGS = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
START_S_MAX = 120
REGISTERED = "Successfully registered with master"


@dataclass(frozen=True)
class Cluster:
    master: str  # spark://127.0.0.1:PORT
    workers: tuple[int, ...]  # process ids

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run tasks: the workers start them."""
        found: list[psutil.Process] = []
        for worker in self.workers:
            for one in psutil.Process(worker).children(recursive=True):
                try:
                    if any("CoarseGrainedExecutorBackend" in part for part in one.cmdline()):
                        found.append(one)
                except psutil.Error:  # it ended meanwhile
                    continue
        return found


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        _, log = stack.enter_context(_daemon(folder, "master", f"{DEPLOY}.master.Master", *FLAGS))
        found = eventually(lambda: re.search(r"spark://127\.0\.0\.1:\d+", log.read_text()), "the master", START_S_MAX)
        command = (f"{DEPLOY}.worker.Worker", *FLAGS, "--cores", "1", "--memory", "600m", found[0])
        workers = [stack.enter_context(_daemon(folder, f"worker{number}", *command)) for number in (1, 2)]
        for _, log in workers:
            eventually(lambda text=log: REGISTERED in text.read_text(), "a worker", START_S_MAX)
        yield Cluster(found[0], tuple(pid for pid, _ in workers))


@contextmanager
def _daemon(folder: Path, name: str, *arguments: str) -> Iterator[tuple[int, Path]]:
    """One of Spark's own servers; yields its process id and its log."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        command = [str(home / "bin" / "spark-class"), *arguments]
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=folder, start_new_session=True)
    try:
        yield process.pid, log
    finally:
        kill(process)

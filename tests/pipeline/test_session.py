"""Starting Spark: Java found or told about, and a start that is tried again only where that is safe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from mainstem.model.errors import ConfigError
from mainstem_pipeline import session
from mainstem_pipeline.session import find_java, retried


def java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    (home / "bin" / "java").chmod(0o755)
    return home


def test_java_home_counts_first_then_the_path(tmp_path: Path) -> None:
    home, other = java(tmp_path / "home", "21.0.2"), java(tmp_path / "other", "17.0.1")
    assert find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == home
    assert find_java({"PATH": str(other / "bin")}) == other


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = java(tmp_path / "old", "1.8.0_392"), java(tmp_path / "new", "25")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_no_java_is_told_with_the_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = java(tmp_path / "old", "11.0.2")
    monkeypatch.setattr(session, "_java_homes", lambda environment: iter([old, tmp_path / "nothing"]))
    with pytest.raises(ConfigError, match=r"needs Java 17 or later.*is Java 11") as caught:
        find_java({})
    assert "apt-get install --yes openjdk-17-jre-headless" in caught.value.fix


def test_a_start_is_tried_again_when_the_planning_process_did_not_answer() -> None:
    calls: list[int] = []

    def flaky() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError("org.apache.spark.SparkException: Python worker failed to connect back.")
        return "started"

    assert retried(flaky) == "started"
    assert len(calls) == 3


def test_any_other_failure_is_told_at_once() -> None:
    calls: list[int] = []

    def broken() -> None:
        calls.append(1)
        raise RuntimeError("[UNRESOLVED_COLUMN] colour")

    with pytest.raises(RuntimeError, match="colour"):
        retried(broken)
    assert len(calls) == 1


def test_a_worker_takes_what_is_imported_out_of_the_collectors_sight_once() -> None:
    text = "import gc; from mainstem_pipeline.workers import settle; settle(); n = gc.get_freeze_count(); "
    text += "kept = [[] for _ in range(1000)]; settle(); assert 0 < n == gc.get_freeze_count(), n"
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


JOB = """
import os, sys
from pathlib import Path
from mainstem_pipeline.session import SparkOptions, start_session

log = Path(sys.argv[1])
told = lambda text: print(text, flush=True)
spark = start_session(SparkOptions(master="local[1]", log=log, fast_start=True, announce=told))
print("workers run", spark.range(1).rdd.map(lambda row: sys.executable).first())

def place(row):
    import pyspark
    return pyspark.__file__

print("pyspark in", spark.range(1).rdd.map(place).first(), os.environ.get("SPARK_HOME"))
try:
    spark.read.format("mainstem").options(url="http://127.0.0.1:9", subscribe="t", retrySeconds="0.1").load().count()
except Exception as error:
    print("told", str(error))
spark.stop()
"""


@pytest.mark.slow
def test_a_session_says_what_it_does_and_keeps_sparks_noise_in_a_file(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    log = tmp_path / "spark.log"
    command = [sys.executable, "-c", JOB, str(log)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    first, *_ = done.stdout.splitlines()
    assert first == f"starting Spark (its log: {log})"
    assert "Spark is up after" in done.stdout
    assert f"workers run {sys.executable}" in done.stdout
    assert f"pyspark in {pyspark.__file__} None" in done.stdout, "as installed, compiled, not from Spark's zip"
    assert "no broker answers at http://127.0.0.1:9" in done.stdout
    assert done.stderr == ""
    assert log.read_text() != ""

"""Starting Spark: Java found or told about, and a start that is tried again only where that is safe."""

from __future__ import annotations

from pathlib import Path

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

"""The README's commands, from a clean clone; all but `make test`, which runs this."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks() -> list[list[str]]:
    return [block.strip().splitlines() for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)]


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 150
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists() or target in ("CONTRIBUTING.md",), target


def test_the_readme_lists_the_folders_there_are() -> None:
    listed = set(re.findall(r"^\| .*`", README.split("## The tree")[1].split("## Develop")[0], re.MULTILINE))
    text = " ".join(listed)
    for folder in ("src/mainstem/", "src/mainstem_pipeline/", "tests/", "bench/", "fuzz/", "examples/", "deploy/"):
        assert f"`{folder}`" in text
        assert (ROOT / folder).is_dir()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_of_the_readme_run_from_a_clean_clone(tmp_path: Path) -> None:
    clone = tmp_path / "mainstem"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    start, tries, demo, _ = blocks()
    environment = {**os.environ, "PYTHON": sys.executable, "MAINSTEM_URL": ""}
    environment.pop("MAINSTEM_URL")
    assert start == ["make run"]
    log = (tmp_path / "run.log").open("wb")
    running = subprocess.Popen(
        start[0].split(), cwd=clone, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True
    )
    try:
        assert running.stdout is not None
        text = ""
        while "Try:" not in text:
            line = running.stdout.readline().decode()
            assert line, (tmp_path / "run.log").read_text()[-3000:]
            text += line
        if "moved to" in text:
            pytest.skip("the usual ports are taken on this machine")
        script = (
            "set -e\n" + "\n".join(line for line in tries if line != "mainstem doctor") + "\nmainstem doctor || true\n"
        )
        done = subprocess.run(
            ["bash", "-c", script], cwd=clone, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("21.5") >= 2
    finally:
        os.killpg(running.pid, signal.SIGTERM)
        running.wait(60)
        log.close()
    if shutil.which("java"):
        assert demo == ["make demo"]
        ran = subprocess.run(
            ["make", "demo"], cwd=clone, capture_output=True, text=True, timeout=1200, env=environment, check=False
        )
        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
        assert "24 legs" in ran.stdout

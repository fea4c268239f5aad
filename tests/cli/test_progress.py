"""Commands that take long write lines with how far they are and how many seconds are left.

What a running broker does for a command (erasing, a backup) is in `test_working.py`; `cluster import` and `export` in
`tests/cluster/test_moving.py`; archives in `tests/pipeline/test_estimate.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from mainstem.server.cli import load_verb, output
from mainstem.storage.tier.manifest import MANIFEST
from mainstem.testing import Broker, BrokerProcess
from tests.crossing.commands import eventually

LINE = re.compile(r"^(.+?) █* *\d+% of (.+), \d+ s left, .+/s$", re.MULTILINE)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is a line, however short the work is."""
    monkeypatch.setattr(output, "PROGRESS_LINE_S", 0.0)


def lines_of(verb: str, *arguments: str) -> list[tuple[str, str]]:
    """(label, total) of each line with an estimate; the command must succeed and end with a summary."""
    done = CliRunner().invoke(load_verb(verb), list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    found = LINE.findall(done.stderr)
    assert found, done.stderr
    assert re.search(rf"^{re.escape(found[-1][0])}: .+ in \d+\.\d s \(.+/s\)$", done.stderr, re.MULTILINE), done.stderr
    return found


def fill(url: str, topic: str, count: int = 100) -> None:
    with httpx.Client(base_url=url) as http:
        for _ in range(count):
            http.post("/v1/messages", json={"topic": topic, "value": "x" * 2_000}).raise_for_status()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("stopped") / "data"
    with Broker("topics.segment_bytes=64KiB", engine="segment", data=data) as broker:
        fill(broker.http_url, "a/b", 200)
    return data


def test_backup_and_restore(stopped: Path, tmp_path: Path) -> None:
    assert lines_of("backup", str(tmp_path / "copy"), "--data", str(stopped))[0][0] == "backup"
    assert lines_of("restore", str(tmp_path / "copy"), str(tmp_path / "restored"))[0][0] == "restore"


def test_verify_and_repair(stopped: Path) -> None:
    labels = {label for label, _ in lines_of("log", "verify", "--data", str(stopped))}
    assert labels and all(label.startswith("log ") for label in labels)
    number = min(int(label.removeprefix("log ")) for label in labels)
    assert lines_of("log", "repair", str(number), "--quarantine", "--data", str(stopped))[0][0] == f"log {number}"


def test_restore_of_a_store(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    store = f"file://{tmp_path / 'bucket'}"
    settings = (f"tier.store={store}", "tier.manifest_ms=0s")
    with BrokerProcess(tmp_path / "data", *settings, engine="object") as broker:
        fill(broker.http_url, "a/b", 20)
        eventually((tmp_path / "bucket" / MANIFEST).exists, "the manifest is stored")
        broker.kill()
    found = lines_of("restore", store, str(tmp_path / "restored"))
    assert found[0][0] == "restore"
    assert found[-1][1].endswith(" pieces")

"""franz-go, built from the Go module proxy in a cache outside the checkout; skipped where that cannot be reached."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mainstem.testing import Broker
from tests.protocol.kafka.clients import unique
from tests.protocol.kafka.java_clients import CACHE

VERSION = "v1.22.2"
SCENARIO = Path(__file__).parent / "go" / "main.go"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def program() -> Path:
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    directory = CACHE / f"franz-go-{VERSION}"
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(SCENARIO, directory)
    (directory / "go.mod").write_text("module peer\n\ngo 1.22\n")
    for command in (["go", "get", f"github.com/twmb/franz-go/pkg/kgo@{VERSION}"], ["go", "build", "-o", "peer"]):
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return directory / "peer"


def test_franz_go_writes_to_a_topic_that_nobody_made_and_reads_it_in_a_group(broker: Broker) -> None:
    command = [str(program()), broker.bootstrap_servers, unique("go")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip().endswith("OK"), done.stdout + done.stderr

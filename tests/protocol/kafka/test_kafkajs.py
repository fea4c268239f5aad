"""KafkaJS, installed from the npm registry into a cache outside the checkout; skipped where that cannot be reached."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mainstem.testing import Broker
from tests.protocol.kafka.clients import unique
from tests.protocol.kafka.java_clients import CACHE

VERSION = "2.2.4"
SCENARIO = Path(__file__).parent / "js" / "scenario.js"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def modules() -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    directory = CACHE / f"kafkajs-{VERSION}"
    if not (directory / "node_modules" / "kafkajs").exists():
        directory.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(directory), f"kafkajs@{VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            pytest.skip(f"npm could not install kafkajs: {done.stderr.strip()[-300:]}")
    return directory / "node_modules"


def test_kafkajs_administrates_produces_consumes_and_commits_transactions(broker: Broker) -> None:
    environment = {**os.environ, "NODE_PATH": str(modules())}
    command = ["node", str(SCENARIO), broker.bootstrap_servers, unique("js")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert done.stdout.strip().endswith("OK"), done.stdout + done.stderr

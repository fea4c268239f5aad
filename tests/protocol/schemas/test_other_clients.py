"""franz-go's and KafkaJS's registry clients, built in a cache outside the checkout; skipped where that cannot be done."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mainstem.testing import Broker
from tests.protocol.kafka.java_clients import CACHE

FRANZ_GO, KAFKAJS = "v1.8.0", "3.9.0"
FOLDER = Path(__file__).parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as one:
        yield one


def run(*command: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, **environment}
    return subprocess.run(command, cwd=cwd, env=whole, capture_output=True, text=True, timeout=300, check=False)


def go_program() -> Path:
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    directory = CACHE / f"franz-go-sr-{FRANZ_GO}"
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(FOLDER / "go" / "main.go", directory)
    (directory / "go.mod").write_text("module peer\n\ngo 1.22\n")
    for command in (("go", "get", f"github.com/twmb/franz-go/pkg/sr@{FRANZ_GO}"), ("go", "build", "-o", "peer")):
        done = run(*command, cwd=directory)
        if done.returncode:
            pytest.skip(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return directory / "peer"


def node_modules() -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    directory = CACHE / f"kafkajs-registry-{KAFKAJS}"
    if not (directory / "node_modules" / "@kafkajs").exists():
        directory.mkdir(parents=True, exist_ok=True)
        package = f"@kafkajs/confluent-schema-registry@{KAFKAJS}"
        done = run("npm", "install", "--no-audit", "--no-fund", "--prefix", str(directory), package)
        if done.returncode:
            pytest.skip(f"npm could not install {package}: {done.stderr.strip()[-300:]}")
    return directory / "node_modules"


def is_decoded(broker: Broker, told: str) -> bool:
    """Whether the broker reads the value that the client printed."""
    value = bytes.fromhex(told.partition("value ")[2].split()[0])
    body = {"topic": "peers", "value_base64": base64.b64encode(value).decode()}
    httpx.post(f"{broker.http_url}/v1/messages", json=body).raise_for_status()
    row = httpx.get(f"{broker.http_url}/v1/messages", params={"topic": "peers", "from": "-1"}).json()["items"][-1]
    return "schema" in row


def test_franz_go(broker: Broker) -> None:
    done = run(str(go_program()), broker.http_url, "franz")
    assert done.stdout.strip().endswith("OK"), done.stdout + done.stderr
    assert is_decoded(broker, done.stdout)


def test_kafkajs(broker: Broker) -> None:
    script = str(FOLDER / "js" / "scenario.js")
    done = run("node", script, broker.http_url, "kafkajs", NODE_PATH=str(node_modules()))
    assert done.stdout.strip().endswith("OK"), done.stdout + done.stderr
    assert is_decoded(broker, done.stdout)

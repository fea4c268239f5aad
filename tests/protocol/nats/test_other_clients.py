"""nats.js (TCP, WebSocket) and nats.go, from their registries into a cache outside the checkout; skipped without those."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from mainstem.testing import Broker

JS = ("@nats-io/transport-node@3.4.0", "@nats-io/jetstream@3.4.0", "@nats-io/obj@3.4.0", "ws@8")
GO = "v1.53.0"
HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mainstem" / "peers"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def run(*command: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **environment}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False, env=given)


def modules() -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    directory = CACHE / "nats-js"
    directory.mkdir(parents=True, exist_ok=True)
    done = run("npm", "install", "--no-audit", "--no-fund", "--prefix", str(directory), *JS)
    if done.returncode:
        pytest.skip(f"npm could not install nats.js: {done.stderr.strip()[-300:]}")
    return directory / "node_modules"


def program() -> Path:
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    directory = CACHE / f"nats-go-{GO}"
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "go" / "main.go", directory)
    (directory / "go.mod").write_text("module peer\n\ngo 1.23\n")
    for command in (["go", "get", f"github.com/nats-io/nats.go@{GO}"], ["go", "build", "-o", "peer"]):
        done = run(*command, cwd=directory)
        if done.returncode:
            pytest.skip(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return directory / "peer"


def test_nats_js_by_tcp_and_by_websocket(broker: Broker) -> None:
    ws = f"ws://127.0.0.1:{broker.ports['ws']}/nats"
    scenario = str(HERE / "js" / "scenario.cjs")
    done = run("node", scenario, broker.nats_url, ws, f"js{uuid.uuid4().hex[:8]}", NODE_PATH=str(modules()))
    assert done.stdout.strip().endswith("OK"), done.stdout + done.stderr


def test_nats_go(broker: Broker) -> None:
    done = run(str(program()), broker.nats_url, f"go{uuid.uuid4().hex[:8]}")
    assert done.stdout.strip().endswith("OK"), done.stdout + done.stderr

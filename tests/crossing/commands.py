"""The command line and the HTTP API of a running broker, as tests ask them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from mainstem.testing.broker import Endpoints

WAIT_S = 20.0


def mainstem(broker: Endpoints, *arguments: str) -> str:
    """What the command says; it must succeed."""
    command = [sys.executable, "-m", "mainstem", *arguments]
    environment = {**os.environ, "MAINSTEM_URL": broker.http_url}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def http(broker: Endpoints, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        broker.http_url + path, data, {"Content-Type": "application/json"} if data else {}, method=method
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return json.loads(answer.read())


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {WAIT_S:.0f} s: {what}"
        time.sleep(0.02)

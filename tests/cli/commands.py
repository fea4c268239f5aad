"""Running `mainstem` as a user does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any


def run(*arguments: str, given: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mainstem", *arguments]
    settled = {**os.environ, "MAINSTEM_CONFIG": "", **environment}
    settled = {name: value for name, value in settled.items() if value}
    return subprocess.run(command, capture_output=True, text=True, input=given, timeout=60, env=settled, check=False)


def said(*arguments: str, given: str | None = None, **environment: str) -> str:
    done = run(*arguments, given=given, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(*arguments: str, **environment: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said(*arguments, "--json", **environment).splitlines()]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port

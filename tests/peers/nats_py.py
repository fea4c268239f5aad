"""nats-py's own tests against this broker: python -m tests.peers.nats_py CHECKOUT [pytest's arguments]...

Its tests start `nats-server` with flags and kill it after each. Here that is a program that starts this broker with what the
flags mean in our settings. They use ports 4222 and 8222. What needs clusters, JWT, a
configuration file or users is not meant: its tests wait for /varz, which needs a login here once there are users.

    python -m tests.peers.nats_py nats.py tests/test_js.py -k KV

    --server ...   be `nats-server`
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

LISTENERS = (
    "mqtt",
    "mqtts",
    "ws",
    "wss",
    "kafka",
    "kafkas",
    "amqp",
    "amqps",
    "natss",
    "https",
)  # none of these is used
DEFAULT_TESTS = ["tests/test_js.py", "tests/test_client.py"]


def be_server(arguments: list[str]) -> None:
    given: dict[str, str] = {}
    while arguments:
        word = arguments.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if name in ("js", "DV", "jetstream", "tls", "tlsverify"):
            given[name] = ""
            continue
        given[name] = value if equals else arguments.pop(0)
    if given.keys() & {"cluster_listen", "routes", "config", "auth", "user"}:
        sys.exit("this needs a cluster, a configuration file, or /varz without a login though there are users")
    data = given.get("sd") or tempfile.mkdtemp(prefix="nats-py-")
    command = [sys.executable, "-m", "mainstem", "serve", "--data", f"{data}/data"]
    for listener in LISTENERS:
        command += ["--set", f"listeners.{listener}_port=0"]
    if "tls" in given:
        command += ["--set", f"tls.certificate={given['tlscert']}", "--set", f"tls.key={given['tlskey']}"]
        command += ["--set", "nats.tls=required", "--set", f"tls.client_ca={given['tlscacert']}"]
    command += ["--nats-port", given.get("p", "4222"), "--http-port", given.get("m", "8222")]
    os.execv(sys.executable, command)


def main(arguments: list[str]) -> int:
    checkout, *rest = arguments
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "nats-server"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} --server "$@"\n')
        program.chmod(0o755)
        root = Path(__file__).parents[2]
        paths = {"PATH": f"{directory}:{os.environ['PATH']}", "PYTHONPATH": f"{root}:{root}/src:{checkout}/nats/src"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(rest or DEFAULT_TESTS)]
        return subprocess.run(command, cwd=Path(checkout) / "nats", env={**os.environ, **paths}, check=False).returncode


if __name__ == "__main__":
    if sys.argv[1:2] == ["--server"]:
        be_server(sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))

"""nats-py's own tests against this broker: python -m tests.peers.nats_py CHECKOUT [pytest's arguments]...

Its tests start `nats-server` with flags and kill it after each. Here that is a program that starts this broker with what the
flags mean in our settings. They use ports 4222 and 8222. Where they want a user, the program adds one, and shows /varz
without a login, for which the tests wait. What needs clusters, a configuration file or a token that is nobody's password is
not meant.

    python -m tests.peers.nats_py nats.py tests/test_js.py -k KV

    --server ...   be `nats-server`
"""

from __future__ import annotations

import base64
import ctypes
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
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
JSON = {"Content-Type": "application/json"}
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
    if given.keys() & {"cluster_listen", "routes", "config", "auth"}:
        sys.exit("this needs a cluster, a configuration file, or a token that is nobody's password")
    data = given.get("sd") or tempfile.mkdtemp(prefix="nats-py-")
    command = [sys.executable, "-m", "mainstem", "serve", "--data", f"{data}/data"]
    for listener in LISTENERS:
        command += ["--set", f"listeners.{listener}_port=0"]
    if "tls" in given:
        command += ["--set", f"tls.certificate={given['tlscert']}", "--set", f"tls.key={given['tlskey']}"]
        command += ["--set", "nats.tls=required", "--set", f"tls.client_ca={given['tlscacert']}"]
    command += ["--nats-port", given.get("p", "4222")]
    if "user" in given:
        serve_user(command, given["user"], given["pass"], int(given.get("m", "8222")))
    os.execv(sys.executable, [*command, "--http-port", given.get("m", "8222")])


def serve_user(command: list[str], name: str, password: str, port: int) -> None:
    """The broker with a user, and /varz for everybody on its port. Both end with this process, however it ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        inner = f"http://127.0.0.1:{probe.getsockname()[1]}"
    child = subprocess.Popen([*command, "--http-port", inner.rpartition(":")[2]], preexec_fn=_end_with_parent)
    while child.poll() is None:
        body = json.dumps({"name": name, "password": password, "admin": True}).encode()
        try:
            urllib.request.urlopen(urllib.request.Request(f"{inner}/v1/users", body, JSON, method="POST"))
            break
        except urllib.error.HTTPError as error:
            if error.code == 401:  # of an earlier start
                break
            raise
        except OSError:
            time.sleep(0.05)
    login = base64.b64encode(f"{name}:{password}".encode()).decode()

    class Shown(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urllib.request.Request(f"{inner}{self.path}", headers={"Authorization": f"Basic {login}"})
            with urllib.request.urlopen(asked) as answer:
                self.send_response(answer.status)
                self.end_headers()
                self.wfile.write(answer.read())

    http.server.ThreadingHTTPServer(("127.0.0.1", port), Shown).serve_forever()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


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

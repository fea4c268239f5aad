"""amqplib's own suite against this broker: python -m tests.peers.amqplib_suite CHECKOUT [file under test/]...

CHECKOUT is of amqp-node/amqplib. It runs in a copy whose default port is the broker's: some cases name none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mainstem.testing import BrokerProcess

DEFAULT_PORT = "5672"
SUITE_S_MAX = 300
CASE_MS_MAX = 20_000


def run(checkout: Path, files: list[str]) -> int:
    with tempfile.TemporaryDirectory() as spare, BrokerProcess(Path(spare, "data")) as broker:
        copy = shutil.copytree(checkout, Path(spare, "amqplib"), ignore=shutil.ignore_patterns(".git"))
        for path in (copy / "lib").glob("*.js"):
            path.write_text(path.read_text().replace(DEFAULT_PORT, str(broker.amqp_port)))
        environment = {**os.environ, "URL": f"amqp://localhost:{broker.amqp_port}"}
        command = ["node", "--test", f"--test-timeout={CASE_MS_MAX}", *(f"test/{one}" for one in files or [""])]
        return subprocess.run(command, cwd=copy, env=environment, timeout=SUITE_S_MAX, check=False).returncode


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]).resolve(), sys.argv[2:]))

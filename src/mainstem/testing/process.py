"""A broker in a process of its own, for tests that kill it: the same ports and data directory across restarts."""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Self

from mainstem.server.listeners import LISTENERS
from mainstem.testing.broker import Endpoints

START_S_MAX = 60.0
STOP_S_MAX = 60.0
LASTING_PORTS = range(15_000, 32_000)  # systems give none of these to outgoing connections, so they are free again
_given: set[int] = set()
_ENDPOINT = re.compile(r"^  (\w+) +\w+://[^:]+:(\d+)", re.MULTILINE)


class BrokerProcess(Endpoints):
    """`with BrokerProcess(directory) as broker: ... broker.kill(); broker.start()`.

    The first start takes free ports, later ones the same again, so that clients find it. Its log is `log_path`.
    """

    listeners: tuple[str, ...] = tuple(LISTENERS)  # those of another version may be fewer

    def __init__(
        self, data: Path, *settings: str, engine: str = "segment", environment: dict[str, str] | None = None
    ) -> None:
        self.data = data
        self.log_path = data.parent / f"{data.name}.log"
        self.ports = {}
        self._settings = (f"topics.engine={engine}", *settings)
        self.prefix: list[str] = []  # of the command: what it runs under
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
        self._forget()

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Returns once it serves; an early end shows what it wrote."""
        command = [*self.prefix, sys.executable, "-m", "mainstem", "serve", "--data", str(self.data)]
        ports = self.ports or dict(zip(self.listeners, lasting_ports(len(self.listeners)), strict=True))
        for name in self.listeners:
            command += [f"--{name}-port", str(ports[name])]
        for setting in self._settings:
            command += ["--set", setting]
        self._log = self.log_path.open("ab")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, env=self._environment)
        self._read_ports()
        return self

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_S_MAX)
        self._forget()
        return code

    def kill(self) -> None:
        """SIGKILL: no goodbye, no sync."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._forget()

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def _read_ports(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline, said = time.monotonic() + START_S_MAX, b""
        while b"Try:" not in said:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._process.stdout.fileno(), 65_536) if ready else b""
            said += chunk
            if not chunk:
                ended = self._process.poll() is not None or ready
                self._process.kill()
                self._process.wait()
                why = "ended at once" if ended else f"did not start within {START_S_MAX:.0f} s"
                raise RuntimeError(f"the broker {why}:\n{said.decode()}\n{self.log()[-4000:]}")
        found = {name: int(port) for name, port in _ENDPOINT.findall(said.decode())}
        self.ports = {"http" if name == "console" else name: port for name, port in found.items()}

    def _forget(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.close()
        self._process, self._log = None, None


def lasting_ports(count: int) -> list[int]:
    """Free ports that nobody is given by chance while the broker that had them is down, nor twice by this process."""
    found: list[int] = []
    if len(_given) > len(LASTING_PORTS) // 2:
        _given.clear()
    for port in random.sample([one for one in LASTING_PORTS if one not in _given], len(LASTING_PORTS) - len(_given)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            _given.update(found)
            return found
    raise RuntimeError(f"no {count} free ports between {LASTING_PORTS.start} and {LASTING_PORTS.stop}")

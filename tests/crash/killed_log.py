"""Runs the appender, breaks it, and holds what is left of its log to what it told."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mainstem.storage.engines import EngineOptions, SharedFiles, open_engine
from mainstem.testing.frames import read_everything
from mainstem.testing.ledger import OffsetMemory, unseal
from tests.crash.appender import LOG_ID

ROOT = Path(__file__).parents[2]
READY_S = 30.0


class KilledLog:
    """One log through many incarnations."""

    def __init__(self, engine: str, directory: Path, seed: int) -> None:
        self.engine, self.directory = engine, directory
        self.rng = random.Random(seed)
        self.memory = OffsetMemory()
        self.acked: dict[int, bytes] = {}
        self.incarnation = 0

    def cycle(self, kill: Callable[[int], None]) -> None:
        """Start the appender, let it work for a moment, break it, and check the log."""
        self.incarnation += 1
        command = [
            sys.executable,
            "-m",
            "tests.crash.appender",
            self.engine,
            str(self.directory),
            str(self.incarnation),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first.startswith(b"ready"), "the appender did not start"
            output = self._collect(process, kill)
        self._take(first + output)
        self.check()

    def _collect(self, process: subprocess.Popen[bytes], kill: Callable[[int], None]) -> bytes:
        """What it told until it was broken; a line cut in two tells nothing."""
        assert process.stdout is not None
        pieces: list[bytes] = []
        reader = threading.Thread(target=lambda: pieces.extend(iter(lambda: process.stdout.read(1 << 16), b"")))  # type: ignore[union-attr]
        reader.start()
        time.sleep(self.rng.uniform(0.02, 0.4))  # not a synchronisation: any moment will do
        kill(process.pid)
        process.wait()
        reader.join()
        return b"".join(pieces).rpartition(b"\n")[0]

    def _take(self, output: bytes) -> None:
        seen: dict[int, bytes] = {}
        acked_end = 0
        for line in output.splitlines():
            word, _, rest = line.partition(b" ")
            if word == b"seen":
                offset, _, payload = rest.partition(b" ")
                seen[int(offset)] = payload
            elif word == b"ok":
                acked_end = int(rest)
        self.memory.see("log", seen)
        self.acked.update({offset: payload for offset, payload in seen.items() if offset < acked_end})

    def check(self) -> None:
        shared = SharedFiles()
        options = EngineOptions(segment_bytes=64 << 10, shared=shared)
        engine = open_engine(self.engine, self.directory, LOG_ID, options=options)
        found = dict(read_everything(engine, LOG_ID, bytes_max=1 << 20))
        start = engine.stat().start_offset
        del engine  # without closing it: the next incarnation finds an unclean log again
        shared.files.close_all()
        assert all(unseal(payload) is not None for payload in found.values()), "something torn was served"
        lost = [offset for offset in self.acked if offset >= start and offset not in found]
        assert not lost, f"{len(lost)} acked records are lost, the first at offset {lost[0]}"
        self.memory.see("log", found)
        assert not self.memory.changed

"""A process that appends and syncs is killed at any moment, again and again; the log keeps what it acknowledged."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.crash.killed_log import KilledLog


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("engine", ["segment", "rocksdb"])
def test_an_acked_append_survives_kill_9(engine: str, tmp_path: Path) -> None:
    log = KilledLog(engine, tmp_path / "log", seed=1)
    for _ in range(6):
        log.cycle(kill)
    assert len(log.acked) > 100, "nothing was acknowledged, so nothing was shown"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["segment", "rocksdb"])
def test_an_acked_append_survives_two_hundred_kills(engine: str, tmp_path: Path) -> None:
    log = KilledLog(engine, tmp_path / "log", seed=2)
    for _ in range(200):
        log.cycle(kill)

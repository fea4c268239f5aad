"""A whole broker's core is killed at any moment, again and again: what it told stays true."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from mainstem.testing.power_cut import PowerCutMount, why_not
from tests.crash.killed_broker import KilledBroker


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def check_that_something_happened(broker: KilledBroker) -> None:
    assert sum(map(len, broker.acked.values())) > 100
    assert broker.settled
    assert broker.kept


def test_a_brokers_promises_survive_kill_9(tmp_path: Path) -> None:
    broker = KilledBroker(tmp_path / "data", seed=1)
    for _ in range(6):
        broker.cycle(kill)
    check_that_something_happened(broker)
    assert broker.dropped_by_retention, "retention never took anything, so it was not shown to spare the queue"


@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_a_brokers_promises_survive_power_cuts(tmp_path: Path) -> None:
    with PowerCutMount(tmp_path, size_mib=1024) as mount:
        broker = KilledBroker(mount.path / "data", seed=os.getpid())
        for _ in range(4):
            broker.cycle(mount.cut)
        check_that_something_happened(broker)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_a_brokers_promises_survive_a_hundred_kills(tmp_path: Path, seed: int) -> None:
    broker = KilledBroker(tmp_path / "data", seed)
    for _ in range(100):
        broker.cycle(kill)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_a_brokers_promises_survive_fifty_power_cuts(tmp_path: Path) -> None:
    with PowerCutMount(tmp_path, size_mib=4096) as mount:
        broker = KilledBroker(mount.path / "data", seed=4)
        for _ in range(50):
            broker.cycle(mount.cut)
